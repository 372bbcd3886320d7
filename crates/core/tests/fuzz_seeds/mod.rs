//! Not a test: extracts small seeds for the fuzzer from files of real servers, into the directory named by
//! the environment (`make seeds`).
//! Each seed is preceded by the parameters that its target reads before the data.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use holdfast_formats::binlog::{EventKind, FILE_MAGIC, Header};
use holdfast_testkit::{
    Server, ServerKind, ServerOptions,
    data::misc::{self, MiscOptions},
};

/// The maximum size of one seed: later contents are like earlier ones.
const SEED_BYTES: usize = 6 << 10;
/// The number of seeds from each kind of file.
const FILES_EACH: usize = 6;

struct Seeds {
    dir: PathBuf,
    server: String,
}

impl Seeds {
    fn write(&self, target: &str, name: &str, parts: &[&[u8]]) {
        let dir = self.dir.join(target);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("{}-{name}", self.server)), parts.concat()).unwrap();
    }

    fn tablespaces(&self, files: &[PathBuf], is_mysql: bool) {
        const FLAGS_AT: usize = 54;
        for (number, file) in files.iter().enumerate() {
            let bytes = fs::read(file).unwrap();
            let page0 = &bytes[..bytes.len().min(SEED_BYTES)];
            self.write("tablespace", &format!("page0-{number}"), &[&page0[..1 << 10]]);
            let flags: [u8; 4] = page0[FLAGS_AT..FLAGS_AT + 4].try_into().unwrap();
            let flags = u32::from_be_bytes(flags).to_le_bytes();
            // Whole pages, of the smaller sizes only.
            let page = &bytes[..bytes.len().min(16 << 10)];
            let end = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let page = if end <= SEED_BYTES { &page[..end] } else { page0 };
            self.write("page", &format!("page0-{number}"), &[&[u8::from(is_mysql)], &flags, page]);
        }
    }

    fn mariadb(&self, datadir: &Path, files: &[PathBuf]) {
        let log = fs::read(datadir.join("ib_logfile0")).unwrap();
        let size = (log.len() as u64).to_le_bytes();
        let lsn = 0x3000_u64.to_le_bytes();
        // Assembled as the target does: the header, followed by the checkpoints.
        let short = [&log[..508], &log[0x1000..0x103c], &log[0x2000..0x203c]].concat();
        self.write("mariadb_redo", "header", &[&lsn, &size, &[1], &short]);
        let records = &log[0x3000..0x3000 + SEED_BYTES];
        for (number, records) in records.chunks(1 << 10).enumerate() {
            self.write("mariadb_redo", &format!("records-{number}"), &[&lsn, &size, &[0], records]);
        }
        let control = fs::read(datadir.join("aria_log_control")).unwrap();
        let len = (control.len() as u32).to_le_bytes();
        self.write("aria", "control", &[&[1, 0, 0, 0], &control, &len[..1]]);
        for (number, file) in
            files.iter().filter(|file| has_extension(file, "MAI")).take(FILES_EACH).enumerate()
        {
            let bytes = fs::read(file).unwrap();
            self.write(
                "aria",
                &format!("index-{number}"),
                &[&[0, 0, 0, 0], &bytes[..bytes.len().min(1 << 10)]],
            );
        }
    }

    /// Consecutive events, of all kinds that the files contain.
    fn binlogs(&self, datadir: &Path) {
        let mut files: Vec<PathBuf> = fs::read_dir(datadir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            // Skip the index files.
            .filter(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                name.strip_prefix("binlog.").is_some_and(|number| number.parse::<u32>().is_ok())
            })
            .collect();
        files.sort();
        let mut seen = BTreeSet::new();
        for file in files {
            let bytes = fs::read(file).unwrap();
            let mut at = FILE_MAGIC.len();
            let mut transaction = Vec::new();
            while let Ok(header) = Header::parse(&bytes[at..]) {
                let event = &bytes[at..at + header.len as usize];
                at += event.len();
                let is_new = event.len() <= SEED_BYTES && seen.insert(header.kind);
                if is_new {
                    self.write("binlog", &format!("kind-{}", header.kind.0), &[event]);
                }
                // The beginning of each transaction with all events that follow, as long as it is small.
                if matches!(header.kind, EventKind::GTID | EventKind::MARIADB_GTID | EventKind::GTID_TAGGED) {
                    transaction.clear();
                }
                transaction.extend_from_slice(event);
                if is_new && transaction.len() <= SEED_BYTES {
                    self.write("binlog", &format!("until-{}", header.kind.0), &[&transaction]);
                }
            }
        }
    }

    fn mysql(&self, datadir: &Path) {
        let mut logs: Vec<PathBuf> = fs::read_dir(datadir.join("#innodb_redo"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| !path.to_string_lossy().ends_with("_tmp"))
            .collect();
        logs.sort();
        for (number, log) in logs.iter().take(2).enumerate() {
            let bytes = fs::read(log).unwrap();
            let lsn: [u8; 8] = bytes[8..16].try_into().unwrap();
            let lsn = u64::from_be_bytes(lsn).to_le_bytes();
            self.write("mysql_redo", &format!("header-{number}"), &[&lsn, &[0], &bytes[..2 << 10]]);
            for block in 4..10 {
                let block_bytes = &bytes[block * 512..(block + 1) * 512];
                self.write("mysql_redo", &format!("block-{number}-{block}"), &[&lsn, &[1], block_bytes]);
            }
        }
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|of| of == extension)
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() { files_below(&path, found) } else { found.push(path) }
    }
}

#[test]
#[ignore = "writes fuzz/seeds"]
fn write_seeds() {
    let dir = PathBuf::from(std::env::var_os("HOLDFAST_FUZZ_SEEDS").unwrap());
    for kind in ServerKind::all_kinds() {
        let mut server = Server::start(kind, ServerOptions::default()).unwrap();
        misc::create(&server, MiscOptions::default()).unwrap();
        crate::binlog::write_all_kinds(&server);
        let is_mysql = kind == ServerKind::MySql97;
        let gtids: Vec<String> = match is_mysql {
            true => vec![server.value("SELECT @@gtid_executed").unwrap()],
            false => vec![server.value("SELECT @@gtid_binlog_pos").unwrap(), "0-1-17,1-2-99".to_owned()],
        };
        server.stop().unwrap();
        let seeds = Seeds { dir: dir.clone(), server: format!("{kind:?}").to_lowercase() };
        for (number, gtid) in gtids.iter().enumerate() {
            seeds.write("gtid", &number.to_string(), &[gtid.as_bytes()]);
        }
        seeds.binlogs(server.datadir());
        let mut files = Vec::new();
        files_below(server.datadir(), &mut files);
        for (number, file) in files.iter().rev().step_by(files.len() / 8 + 1).enumerate() {
            let name = file.file_name().unwrap().to_string_lossy();
            seeds.write("table_name", &number.to_string(), &[name.as_bytes()]);
        }
        let tablespaces: Vec<PathBuf> =
            files.iter().rev().filter(|file| has_extension(file, "ibd")).cloned().collect();
        let some: Vec<PathBuf> =
            tablespaces.iter().step_by(tablespaces.len() / FILES_EACH + 1).cloned().collect();
        seeds.tablespaces(&some, is_mysql);
        match is_mysql {
            true => seeds.mysql(server.datadir()),
            false => seeds.mariadb(server.datadir(), &files),
        }
    }
}

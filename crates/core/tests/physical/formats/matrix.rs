//! Page sizes, compressed row formats, page compression, checksums.

use holdfast_testkit::encryption::mariadb_key_options;

use super::*;

/// One server of the matrix.
#[derive(Clone, Debug)]
struct Case {
    kind: ServerKind,
    page_size_kib: u32,
    /// Values of `innodb_checksum_algorithm`; the first one applies to new pages.
    checksums: &'static [&'static str],
}

const fn case(kind: ServerKind, page_size_kib: u32, checksums: &'static [&'static str]) -> Case {
    Case { kind, page_size_kib, checksums }
}

const MARIADB_CHECKSUMS: [&[&str]; 2] = [&["full_crc32"], &["crc32"]];
/// Pages with every algorithm that the server has ever offered, side by side.
const MYSQL_CHECKSUMS: [&[&str]; 2] = [&["crc32"], &["none", "innodb", "crc32"]];

/// Each page size and each family of checksums at least once.
const SHORT: [Case; 9] = [
    case(ServerKind::MariaDb1011, 4, &["crc32"]),
    case(ServerKind::MariaDb1011, 8, &["full_crc32"]),
    case(ServerKind::MariaDb1011, 16, &["crc32", "full_crc32"]),
    case(ServerKind::MariaDb118, 32, &["full_crc32"]),
    case(ServerKind::MariaDb118, 64, &["crc32"]),
    case(ServerKind::MySql97, 4, &["crc32"]),
    case(ServerKind::MySql97, 8, &["innodb"]),
    case(ServerKind::MySql97, 16, &["none", "innodb", "crc32"]),
    case(ServerKind::MySql97, 64, &["crc32"]),
];

fn cases(kind: ServerKind) -> Vec<Case> {
    if !long() {
        return SHORT.into_iter().filter(|case| case.kind == kind).collect();
    }
    let checksums = if kind.is_mariadb() { MARIADB_CHECKSUMS } else { MYSQL_CHECKSUMS };
    let sizes = [4, 8, 16, 32, 64];
    sizes.into_iter().flat_map(|size| checksums.map(|checksums| case(kind, size, checksums))).collect()
}

/// The page compression providers that this server comes with.
fn with_providers(kind: ServerKind, options: ServerOptions) -> ServerOptions {
    let providers: &[&str] = match kind {
        ServerKind::MariaDb1011 | ServerKind::MariaDb118 => &["bzip2", "lz4", "lzma", "lzo", "snappy"],
        ServerKind::MariaDb1011Earlier | ServerKind::MySql97 => &[],
    };
    let load =
        |options: ServerOptions, name: &&str| options.arg(format!("--plugin-load-add=provider_{name}"));
    providers.iter().fold(options, load)
}

fn prove(case: &Case, seed: u64) {
    println!("{case:?}");
    let options = ServerOptions::default()
        .init_arg(format!("--innodb-page-size={}k", case.page_size_kib))
        .init_arg(format!("--innodb-checksum-algorithm={}", case.checksums[0]));
    let source = Server::start(case.kind, with_providers(case.kind, options)).unwrap();
    // What is left in memory gets the algorithm of the moment at which it is written.
    let write_out = |table: &str| {
        source.exec_all([format!("FLUSH TABLES {table} FOR EXPORT"), "UNLOCK TABLES".to_owned()]).unwrap();
    };
    let mut tables = pages::create(&source).unwrap();
    write_out("pages.dynamic");
    for algorithm in &case.checksums[1..] {
        source.exec(format!("SET GLOBAL innodb_checksum_algorithm = {algorithm}")).unwrap();
        // On MariaDB the setting applies to new files, otherwise to each page that is written.
        let table = format!("pages.of_{algorithm}");
        source.exec(format!("CREATE TABLE {table} LIKE pages.dynamic")).unwrap();
        source.exec(format!("INSERT INTO {table} SELECT * FROM pages.dynamic")).unwrap();
        write_out(&table);
        tables.push(table);
    }
    let load = PageLoad::start(&source, &tables, 2, seed).unwrap();
    let stage = Stage::around(source);
    // The second looks only at pages that have changed.
    let [first, _] = stage.back_up_twice(load);
    let seen = &first.capture.pages_by_checksum;
    for algorithm in case.checksums {
        let is_seen = match *algorithm {
            "none" => first.capture.pages_unverifiable > 0,
            algorithm => seen.contains_key(algorithm),
        };
        assert!(is_seen, "no page of {algorithm}: {:?}", first.capture);
    }
}

fn prove_all(kind: ServerKind) {
    for (seed, case) in cases(kind).iter().enumerate() {
        prove(case, seed as u64);
    }
}

#[test]
fn mariadb_10_11_pages_of_every_format_are_restored() {
    prove_all(ServerKind::MariaDb1011);
}

#[test]
fn mariadb_11_8_pages_of_every_format_are_restored() {
    prove_all(ServerKind::MariaDb118);
}

#[test]
fn mysql_9_7_pages_of_every_format_are_restored() {
    prove_all(ServerKind::MySql97);
}

/// A server is started without the provider of its compressed tables, and cannot read them. Its backup names
/// the provider all the same, whether the file or only its pages tell which one it is, and with it the restored
/// server can read them.
#[test]
fn mariadb_tables_whose_provider_is_not_loaded_are_restored() {
    let kind = ServerKind::MariaDb1011;
    for (checksums, encrypted) in [("crc32", ""), ("crc32", "ENCRYPTED=YES"), ("full_crc32", "")] {
        let keys = tempfile::tempdir().unwrap();
        let key_options = match encrypted {
            "" => Vec::new(),
            _ => mariadb_key_options(keys.path()).unwrap(),
        };
        let plain = key_options.iter().fold(ServerOptions::default(), ServerOptions::init_arg);
        let plain = plain.init_arg(format!("--innodb-checksum-algorithm={checksums}"));
        let with =
            plain.clone().arg("--plugin-load-add=provider_lz4").arg("--innodb-compression-algorithm=lz4");
        let mut source = Server::start(kind, with.clone()).unwrap();
        source
            .exec_all([
                "CREATE DATABASE c".to_owned(),
                format!(
                    "CREATE TABLE c.t (i INT PRIMARY KEY, v TEXT) ENGINE=InnoDB PAGE_COMPRESSED=1 {encrypted}"
                ),
                "INSERT INTO c.t SELECT seq, REPEAT(MD5(seq), 9) FROM c.seq_1_to_3000".to_owned(),
                "SET GLOBAL innodb_fast_shutdown = 0".to_owned(),
            ])
            .unwrap();
        const SUM: &str = "SELECT CAST(SUM(CRC32(v)) AS CHAR) FROM c.t";
        let sum: String = source.value(SUM).unwrap();
        source.stop().unwrap();
        let source = Server::attach(kind, source.datadir(), plain.clone()).unwrap();
        assert!(source.query::<String>(SUM).is_err(), "the provider is not needed here");
        let stage = Stage { server_options: plain, prepare_options: key_options, ..Stage::around(source) };
        let backup = stage.back_up();
        let (restored, report) = stage.restore(backup.run.backup);
        let named: Vec<_> =
            report.server_options.iter().filter(|option| option.contains("provider_")).collect();
        assert_eq!(named, ["--plugin-load-add=provider_lz4"], "{checksums} {encrypted}");
        assert_eq!(restored.server.value::<String>(SUM).unwrap(), sum);
    }
}

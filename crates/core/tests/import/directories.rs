//! Directories created by mydumper from a small shop on MariaDB 10.11: as they are, and as older versions and
//! other options write them.

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(name)
}

fn copied() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture("mydumper")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// Compresses every file except the metadata, in different ways.
fn compress(dir: &Path) {
    for (number, entry) in
        fs::read_dir(dir).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>().iter().enumerate()
    {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if name == "metadata" {
            continue;
        }
        let text = fs::read(entry).unwrap();
        let (end, packed) = if number % 2 == 0 {
            ("zst", zstd::stream::encode_all(&text[..], 1).unwrap())
        } else {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&text).unwrap();
            ("gz", gzip.finish().unwrap())
        };
        fs::write(dir.join(format!("{name}.{end}")), packed).unwrap();
        fs::remove_file(entry).unwrap();
    }
}

/// Puts one table's rows into a file that is loaded by a statement, as other versions write them.
fn with_content(dir: &Path) {
    let head = "/*!40101 SET NAMES binary*/;\n/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n/*!40103 SET TIME_ZONE='+00:00' */;\n";
    let load = "LOAD DATA LOCAL INFILE '/backup/of/then/shop.orders.00000.dat' REPLACE INTO TABLE `orders` CHARACTER SET binary \
                FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' (`id`,`person`,`total`,`note`);\n";
    let mut content = String::new();
    for n in 1..=400 {
        let total = (f64::from(n) / 7.0 * 100.0).round() / 100.0;
        content.push_str(&format!("{n}\t{}\t{total:.2}\torder; {n}\n", 1 + n % 3));
    }
    fs::write(dir.join("shop.orders.00000.sql"), [head, load].concat()).unwrap();
    fs::write(dir.join("shop.orders.00000.dat"), content).unwrap();
}

#[test]
fn directories_of_mydumper() {
    let files = tempfile::tempdir().unwrap();
    let repo = crate::physical::new_repo(&files.path().join("repo"));
    let work = work_dir();
    let kind = ServerKind::MariaDb1011;
    let whole = import(&repo, &options(&fixture("mydumper"), kind, work.path())).unwrap();
    assert_eq!((whole.read.tables, whole.read.rows), (4, 404));
    let origin = whole.import.as_ref().unwrap();
    assert_eq!(origin.form, "mydumper");
    assert_eq!(origin.dumped_at.as_deref(), Some("2026-11-22 03:08:32"));
    assert_eq!(origin.position.as_ref().unwrap().text(), "binlog.000003:339, GTID 0-1-157");

    // In the old form, compressed, with rows outside the statements.
    let old = copied();
    with_content(old.path());
    compress(old.path());
    fs::copy(fixture("metadata-of-old-versions"), old.path().join("metadata")).unwrap();
    fs::write(old.path().join("shop.orders-metadata"), "401\n").unwrap();
    let error = import(&repo, &options(old.path(), kind, work.path())).unwrap_err();
    assert!(error.to_string().contains("how many rows shop."), "{error}");
    let old_options = || ImportOptions { without_end_mark: true, ..options(old.path(), kind, work.path()) };
    let error = import(&repo, &old_options()).unwrap_err();
    assert!(error.to_string().contains("have 400 rows"), "{error}");
    fs::write(old.path().join("shop.orders-metadata"), "400\n").unwrap();
    let again = import(&repo, &old_options()).unwrap();
    assert!(
        again.import.as_ref().unwrap().without_end_mark && !whole.import.as_ref().unwrap().without_end_mark
    );
    assert_no_difference(&repo, whole.run.backup, again.run.backup);
    let origin = again.import.as_ref().unwrap();
    assert_eq!(origin.position.as_ref().unwrap().text(), "binlog.000003:339, GTID 0-1-157");
    assert_eq!(origin.primary_position.as_ref().unwrap().text(), "primary.000009:4, GTID 0-1-157");
    assert!(again.run.totals.bytes_stored < whole.run.totals.bytes_stored, "{:?}", again.run.totals);

    // An incomplete directory is refused.
    let metadata = fs::read_to_string(fixture("mydumper/metadata")).unwrap();
    let spoilt = |why: &str, spoil: &dyn Fn(&Path)| {
        let dir = copied();
        spoil(dir.path());
        let error = import(&repo, &options(dir.path(), kind, work.path())).unwrap_err();
        assert!(error.to_string().contains(why), "{why}: {error}");
        assert_eq!(standing(&repo), 2);
        assert_empty(work.path());
    };
    spoilt("not finished", &|dir| fs::rename(dir.join("metadata"), dir.join("metadata.partial")).unwrap());
    spoilt("interrupted", &|dir| {
        fs::write(dir.join("metadata"), metadata.split("# Finished").next().unwrap()).unwrap();
    });
    spoilt("no file called metadata", &|dir| fs::remove_file(dir.join("metadata")).unwrap());
    for (file, why) in [
        ("shop.a_view-schema-view.sql", "makes the view shop.a_view"),
        ("shop.empty_one-schema.sql", "makes the table shop.empty_one"),
        ("shop-schema-post.sql", "makes the routines and events of shop"),
        ("shop-schema-triggers.sql", "makes the triggers of shop"),
    ] {
        spoilt(why, &|dir| fs::remove_file(dir.join(file)).unwrap());
    }
    spoilt("not a regular file", &|dir| {
        std::os::unix::fs::symlink("/etc/passwd", dir.join("shop.people.00001.dat")).unwrap();
    });
    spoilt("not a regular file", &|dir| {
        fs::remove_file(dir.join("metadata")).unwrap();
        assert!(Command::new("mkfifo").arg(dir.join("metadata")).status().unwrap().success());
    });
    spoilt("have 0 rows", &|dir| fs::remove_file(dir.join("shop.people.00000.sql")).unwrap());
    spoilt("shop-schema-create.sql", &|dir| fs::remove_file(dir.join("shop-schema-create.sql")).unwrap());
    spoilt("which mydumper does not make", &|dir| {
        fs::write(dir.join("shop.people.00000.sql.xz"), "x").unwrap()
    });
    spoilt("ends within", &|dir| {
        let path = dir.join("shop.orders.00000.sql");
        let text = fs::read(&path).unwrap();
        fs::write(path, &text[..text.len() / 2]).unwrap();
    });
}

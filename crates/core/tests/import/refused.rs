//! Dumps that are truncated, broken, hostile, or ambiguous about their values are refused by name, and
//! nothing is published.

use super::*;

const HEAD: &str = "-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for Linux (x86_64)\n--\n-- Host: db1    Database: shop\n\
                    -- Server version\t10.11.6-MariaDB\n\n/*!40101 SET NAMES utf8mb4 */;\n/*!40103 SET TIME_ZONE='+00:00' */;\n";
const OF_MYSQL: &str = "-- MySQL dump 10.13  Distrib 9.7.4, for Linux (x86_64)\n--\n-- Host: db1    Database: shop\n\
                        -- Server version\t9.7.4\n\n/*!40101 SET NAMES utf8mb4 */;\n/*!40103 SET TIME_ZONE='+00:00' */;\n";
const SHOP: &str = "CREATE DATABASE shop;\nUSE shop;\nCREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10), at TIMESTAMP NULL);\n\
                    INSERT INTO t VALUES (1,'ä',NULL),(2,'x','2026-01-01 00:00:00');\n";
const END: &str = "-- Dump completed on 2026-11-20  3:00:01\n";

struct Place {
    repo: Arc<Repo>,
    work: TempDir,
    files: TempDir,
}

impl Place {
    fn new() -> Place {
        let files = tempfile::tempdir().unwrap();
        Place { repo: crate::physical::new_repo(&files.path().join("repo")), work: work_dir(), files }
    }

    fn options(&self, dump: &[u8]) -> ImportOptions {
        let path = self.files.path().join("dump.sql");
        fs::write(&path, dump).unwrap();
        options(&path, ServerKind::MariaDb1011, self.work.path())
    }

    fn import(&self, dump: impl AsRef<[u8]>) -> Result<LogicalReport> {
        import(&self.repo, &self.options(dump.as_ref()))
    }

    /// The error with which an import is refused.
    fn refused(&self, options: &ImportOptions) -> Error {
        let before = standing(&self.repo);
        let error = import(&self.repo, options).unwrap_err();
        assert_eq!(standing(&self.repo), before);
        assert_empty(self.work.path());
        error
    }
}

/// Nothing is created before the whole dump has been checked.
#[test]
fn dumps_that_are_no_good() {
    let place = Place::new();
    let gzip = {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all([HEAD, SHOP, END].concat().as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let with = |more: &str| [HEAD, SHOP, more, END].concat().into_bytes();
    for (dump, why) in [
        ([HEAD, SHOP].concat().into_bytes(), "cut off"),
        ([HEAD, SHOP, END, "DROP TABLE t;\n"].concat().into_bytes(), "cut off"),
        ([HEAD, SHOP, "INSERT INTO t VALUES (3,'a"].concat().into_bytes(), "ends within a quoted value"),
        (gzip[..gzip.len() - 9].to_vec(), "read dump.sql"),
        ([HEAD, END].concat().into_bytes(), "is not a dump"),
        (with("SHUTDOWN;\n"), "line 12: SHUTDOWN is not a statement that dumps use"),
        (with("/*!999999 x */ SHUTDOWN;\n"), "SHUTDOWN"),
        (with("/*M!100100 SHUTDOWN */;\n"), "SHUTDOWN"),
        (with("SELECT 'x' INTO OUTFILE '/tmp/x';\n"), "SELECT is not a statement"),
        (with("LOAD DATA INFILE '/etc/passwd' INTO TABLE t;\n"), "LOAD DATA"),
        (with("LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t;\n"), "only directories of mydumper"),
        (with("INSTALL SONAME 'x';\n"), "INSTALL"),
        (with("SET GLOBAL general_log_file = '/tmp/x';\n"), "for the whole server"),
        (with("CREATE USER somebody;\n"), "accounts and grants"),
        (with("USE mysql;\nINSERT INTO global_priv VALUES ('%','x','{}');\n"), "server's own databases"),
        (with("SET NAMES sjis;\n"), "a part of a letter"),
        ([HEAD, "CREATE TABLE t (id INT);\n", END].concat().into_bytes(), "names no database"),
        ([&HEAD.replace("SET TIME", "SET @t"), SHOP, END].concat().into_bytes(), "time zone"),
        (
            [&HEAD.replace("SET NAMES utf8mb4", "SET @x='y'"), SHOP, END].concat().into_bytes(),
            "character set",
        ),
        ([&HEAD.replace("MariaDB", "MySQL"), SHOP, END].concat().into_bytes(), "the dump is of MySQL"),
    ] {
        let error = place.refused(&place.options(&dump));
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
    // A pipe can be read only once, so the problem is found when it is reached.
    let fifo = place.files.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let writer = {
        let (fifo, dump) = (fifo.clone(), with("SHUTDOWN;\n"));
        std::thread::spawn(move || fs::write(fifo, dump))
    };
    let error = place.refused(&options(&fifo, ServerKind::MariaDb1011, place.work.path()));
    assert!(error.to_string().contains("SHUTDOWN"), "{error}");
    drop(writer.join());
}

/// Problems that the server finds, or that only it could find.
#[test]
fn dumps_that_a_server_does_not_take() {
    let place = Place::new();
    let with = |more: &str| [HEAD, SHOP, more, END].concat();
    for (more, why) in [
        ("INSERT INTO t VALUES (1,'twice',NULL);\n", "line 12: INSERT INTO t: Duplicate entry"),
        ("INSERT INTO t VALUES (3,'longer than ten',NULL);\n", "warns"),
        ("SET sql_mode='STRICT_ALL_TABLES';\nINSERT INTO t VALUES (3,'longer than ten',NULL);\n", "too long"),
        ("CREATE TABLE u (id INT) ENGINE=FEDERATED CONNECTION='mysql://x@example.org/a/b';\n", "FEDERATED"),
        (
            "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.v = LENGTH(LOAD_FILE('/etc/passwd'));\n\
             CREATE DEFINER=root@localhost FUNCTION f() RETURNS INT BEGIN SELECT 1 INTO OUTFILE '/tmp/hf-out'; RETURN 1; END;\n",
            "line",
        ),
    ] {
        let error = place.refused(&place.options(with(more).as_bytes()));
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
}

/// Accounts with all privileges that an installation creates; the server's own tables; and a file of the
/// host, whoever writes it.
#[test]
fn dumps_that_want_more_rights() {
    let place = Place::new();
    let file = place.files.path().join("written");
    let function = |definer: &str| {
        format!(
            "DELIMITER ;;\nCREATE DEFINER={definer} FUNCTION f() RETURNS INT DETERMINISTIC BEGIN \
             SET GLOBAL general_log_file='{}'; SET GLOBAL general_log=1; RETURN 9; END ;;\nDELIMITER ;\n\
             INSERT INTO t VALUES (f(),'x',NULL);\n",
            file.display()
        )
    };
    let show = |what: &str| format!("CREATE VIEW v AS SELECT * FROM {what};\n");
    for (kind, head, more, why) in [
        (ServerKind::MariaDb1011, HEAD, function("`root`@`127.0.0.1`"), "INSERT INTO t: Access denied"),
        (ServerKind::MariaDb1011, HEAD, function("`mariadb.sys`@`localhost`"), "of the server's own"),
        (ServerKind::MariaDb1011, HEAD, show("mysql.global_priv"), "denied"),
        (ServerKind::MariaDb1011, HEAD, "CREATE DATABASE `#mysql50#mysql`;\n".to_owned(), "no dump makes"),
        (ServerKind::MySql97, OF_MYSQL, function("`mysql.session`@`localhost`"), "of the server's own"),
        (ServerKind::MySql97, OF_MYSQL, function("root@localhost"), "INSERT INTO t: Access denied"),
        (ServerKind::MySql97, OF_MYSQL, show("mysql.user"), "denied"),
    ] {
        let path = place.files.path().join("dump.sql");
        fs::write(&path, [head, SHOP, &more, END].concat()).unwrap();
        let error = place.refused(&options(&path, kind, place.work.path()));
        assert!(error.to_string().contains(why), "{why}: {error}");
        assert!(!file.exists());
    }
}

/// Zeros stay zeros, although the dump does not set the mode that keeps them.
#[test]
fn what_is_zero() {
    let place = Place::new();
    let dump = |mode: &str| {
        let rows = "CREATE TABLE z (id INT AUTO_INCREMENT PRIMARY KEY, d DATE) AUTO_INCREMENT=1000;\n\
                    INSERT INTO z VALUES (0,'0000-00-00'),(1,'2026-00-00');\n";
        [HEAD, mode, SHOP, rows, END].concat()
    };
    let bare = place.import(dump("")).unwrap();
    let whole = place.import(dump("SET SQL_MODE='NO_AUTO_VALUE_ON_ZERO';\n")).unwrap();
    assert_no_difference(&place.repo, bare.run.backup, whole.run.backup);
}

/// A character set without a collation has the one that was the default of the dumped server, not of ours.
#[test]
fn collations_that_are_not_said() {
    let place = Place::new();
    for (kind, head, collation) in [
        (ServerKind::MySql97, OF_MYSQL.replace("9.7.4", "5.7.44"), "utf8mb4_general_ci"),
        (ServerKind::MySql97, OF_MYSQL.to_owned(), "utf8mb4_0900_ai_ci"),
        (ServerKind::MariaDb118, HEAD.replace("10.11.6", "10.4.32"), "utf8mb4_general_ci"),
        (ServerKind::MariaDb118, HEAD.replace("10.11.6", "11.8.2"), "utf8mb4_uca1400_ai_ci"),
    ] {
        let dump = [
            &head,
            "CREATE DATABASE shop DEFAULT CHARACTER SET utf8mb4;\nUSE shop;\n",
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10)) DEFAULT CHARSET=utf8mb4;\n",
            END,
        ];
        let path = place.files.path().join("dump.sql");
        fs::write(&path, dump.concat()).unwrap();
        let report = import(&place.repo, &options(&path, kind, place.work.path())).unwrap();
        let (backup, mut script) = (opened(&place.repo, report.run.backup), Vec::new());
        holdfast_core::logical::script::write(&backup, None, &mut script, &Cancel::default()).unwrap();
        let script = String::from_utf8(script).unwrap();
        let named: Vec<&str> = script
            .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .filter(|word| word.starts_with("utf8mb4_"))
            .collect();
        let is_so = named.len() >= 2 && named.iter().all(|name| *name == collation);
        assert!(is_so, "{kind} {head}:\n{script}");
    }
}

/// A user can supply facts that a dump lacks; what is left out is named; and the history is the same.
#[test]
fn what_the_user_knows() {
    let place = Place::new();
    let whole = place.import([HEAD, SHOP, END].concat()).unwrap();
    assert_eq!((whole.read.tables, whole.read.rows), (1, 2));
    let origin = whole.import.unwrap();
    assert_eq!(origin.dumped_at.as_deref(), Some("2026-11-20 3:00:01"));
    assert!(origin.position.is_none() && !origin.without_end_mark);

    let bare = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10), at TIMESTAMP NULL);\n\
                INSERT INTO t VALUES (1,'\u{e4}',NULL),(2,'x','2026-01-01 02:00:00');\nCREATE USER x;\n";
    let bare = encoding(bare);
    let said = ImportOptions {
        database: Some("shop".to_owned()),
        charset: Some("latin1".to_owned()),
        time_zone: Some("+02:00".to_owned()),
        without_end_mark: true,
        without_accounts: true,
        ..place.options(&bare)
    };
    let second = import(&place.repo, &said).unwrap();
    assert_empty(place.work.path());
    let origin = second.import.clone().unwrap();
    assert_eq!(
        (origin.left_out.as_slice(), origin.without_end_mark),
        (&["accounts and grants".to_owned()][..], true)
    );
    let mut found = Differences::default();
    let (one, other) = (opened(&place.repo, whole.run.backup), opened(&place.repo, second.run.backup));
    let totals = diff(&one, &other, &DiffOptions::default(), &mut found, &Cancel::default()).unwrap();
    assert_eq!((totals.rows.changed, totals.tables_differing), (0, 0), "{:?}", found.0);
}

/// Text encoded in latin1.
fn encoding(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap()).collect()
}

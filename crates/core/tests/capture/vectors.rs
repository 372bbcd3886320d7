//! MariaDB's vector indexes, each of which is a table of its own.

use mysql::prelude::Queryable;

use super::*;

/// The names of tables by engine.
const TABLES: [(&str, &str); 3] = [("v", "InnoDB"), ("a", "Aria"), ("m", "MyISAM")];

/// Tables with vector indexes are captured while they are written to, and while one is imported and then
/// written to. The index is imported with its table, so both must be closed for their copies.
#[test]
fn mariadb_11_8_vector_indexes_are_whole() {
    let source = Server::start(ServerKind::MariaDb118, ServerOptions::default()).unwrap();
    source.exec("CREATE DATABASE x").unwrap();
    for (table, engine) in TABLES {
        source
            .exec(format!(
                "CREATE TABLE x.{table} (id INT PRIMARY KEY, e VECTOR(4) NOT NULL, VECTOR INDEX (e)) ENGINE={engine}"
            ))
            .unwrap();
    }
    let add = |begin: u32| {
        for (table, _) in TABLES {
            source
                .exec(format!(
                    "INSERT INTO x.{table} SELECT seq, VEC_FromText(CONCAT('[', seq, ',', seq % 7, ',', seq % 11, ',1]'))
                     FROM x.seq_{begin}_to_{}",
                    begin + 199
                ))
                .unwrap();
        }
    };
    add(1);
    let kept = tempfile::tempdir().unwrap();
    let put = |out: bool| {
        for file in ["v.ibd", "v.cfg", "v#i#01.ibd", "v#i#01.cfg"] {
            let (live, apart) = (source.datadir().join("x").join(file), kept.path().join(file));
            let (from, to) = if out { (&live, &apart) } else { (&apart, &live) };
            fs::copy(from, to).unwrap();
        }
    };
    let mut exporter = source.conn().unwrap();
    exporter.query_drop("FLUSH TABLES x.v FOR EXPORT").unwrap();
    put(true);
    exporter.query_drop("UNLOCK TABLES").unwrap();
    for (round, phase) in ["copy", "stop"].into_iter().enumerate() {
        let copy = races::recovered(&source, phase, ServerOptions::default(), || {
            source.exec("ALTER TABLE x.v DISCARD TABLESPACE").unwrap();
            put(false);
            source.exec("ALTER TABLE x.v IMPORT TABLESPACE").unwrap();
            add(1_000 * (round as u32 + 1));
        });
        assert_equal_checksums(&source, &copy.server).unwrap();
        for (table, _) in TABLES {
            races::is_whole(&copy.server, &format!("x.{table}"));
            let nearest = format!(
                "SELECT id FROM x.{table} ORDER BY VEC_DISTANCE_EUCLIDEAN(e, VEC_FromText('[1100,3,3,1]')) LIMIT 10"
            );
            let [ours, theirs] = [&copy.server, &source].map(|it| it.query::<u32>(&nearest).unwrap());
            assert_eq!(ours, theirs, "{table}");
        }
    }
}

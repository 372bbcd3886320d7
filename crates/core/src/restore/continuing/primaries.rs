//! Makes a restored copy of a replica a replica of the same primaries,
//! which is what most backups of a replica are for.

use holdfast_formats::Flavor;

use super::{gtid_text, in_file_name};
use crate::{
    position::{Position, ReplicaPosition},
    server::ServerVersion,
};

/// The statements, one text for each channel whose place is known; `<…>` is to be filled in.
///
/// A channel that found its place by GTID does so again: on MySQL by what the copy has executed, on MariaDB
/// by what the source had applied. Others continue at the recorded place in the primary's binlog.
pub(crate) fn primary_statements(version: &ServerVersion, position: &Position) -> Vec<String> {
    let statement = |of: &ReplicaPosition| match version.flavor {
        Flavor::MariaDb => mariadb(of, position.replica_gtid.as_deref()),
        Flavor::MySql => mysql(of),
    };
    // They come from the repository, and somebody will paste them into a client.
    let is_harmless = |of: &&ReplicaPosition| {
        let file = of.executed.as_ref().map_or("", |executed| &executed.file);
        of.host.chars().all(in_host) && of.channel.chars().all(in_file_name) && file.chars().all(in_file_name)
    };
    position.replica_of.iter().filter(is_harmless).filter_map(statement).collect()
}

fn mariadb(of: &ReplicaPosition, gtid: Option<&str>) -> Option<String> {
    let ReplicaPosition { channel, host, port, .. } = of;
    let name = if channel.is_empty() { String::new() } else { format!(" '{channel}'") };
    let (before, place) = if of.by_gtid {
        let gtid = gtid_text(gtid)?;
        (format!("SET GLOBAL gtid_slave_pos = '{gtid}'; "), "MASTER_USE_GTID=slave_pos".to_owned())
    } else {
        let place = of.executed.as_ref()?;
        let place =
            format!("MASTER_LOG_FILE='{}', MASTER_LOG_POS={}, MASTER_USE_GTID=no", place.file, place.offset);
        (String::new(), place)
    };
    Some(format!(
        "{before}CHANGE MASTER{name} TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='<user>', \
         MASTER_PASSWORD='<password>', {place}; START SLAVE{name};"
    ))
}

fn mysql(of: &ReplicaPosition) -> Option<String> {
    let ReplicaPosition { channel, host, port, .. } = of;
    let name = format!("FOR CHANNEL '{channel}'");
    let place = match &of.executed {
        _ if of.by_gtid => "SOURCE_AUTO_POSITION=1".to_owned(),
        Some(place) => format!(
            "SOURCE_LOG_FILE='{}', SOURCE_LOG_POS={}, SOURCE_AUTO_POSITION=0",
            place.file, place.offset
        ),
        None => return None,
    };
    // The copy's own tables name relay logs that it does not have.
    Some(format!(
        "RESET REPLICA ALL {name}; CHANGE REPLICATION SOURCE TO SOURCE_HOST='{host}', SOURCE_PORT={port}, \
         SOURCE_USER='<user>', SOURCE_PASSWORD='<password>', {place} {name}; START REPLICA {name};"
    ))
}

fn in_host(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':')
}

#[cfg(test)]
mod tests {
    use holdfast_formats::Lsn;

    use super::*;
    use crate::{position::Precision, server::status::BinlogPosition};

    fn channel(channel: &str, host: &str, file: Option<&str>, by_gtid: bool) -> ReplicaPosition {
        ReplicaPosition {
            channel: channel.to_owned(),
            host: host.to_owned(),
            port: 3306,
            by_gtid,
            executed: file.map(|file| BinlogPosition { file: file.to_owned(), offset: 77 }),
        }
    }

    /// Each channel continues in its own way, and what is unknown or would do harm becomes no statement.
    #[test]
    fn statements() {
        let say = |version: &str, replica_of: Vec<ReplicaPosition>| {
            let position = Position {
                precision: Precision::Exact,
                lsn: Lsn(1),
                binlog: None,
                gtid: Some("0-7-9".to_owned()),
                replica_gtid: Some("0-1-5,2-2-8".to_owned()),
                replica_of,
                at: None,
            };
            primary_statements(&ServerVersion::parse(version).unwrap(), &position)
        };
        let channels = || {
            vec![channel("", "db0", Some("bin.000003"), true), channel("b", "::1", Some("bin.000004"), false)]
        };
        let [by_gtid, by_file] = say("11.8.6-MariaDB", channels()).try_into().unwrap();
        assert!(by_gtid.starts_with("SET GLOBAL gtid_slave_pos = '0-1-5,2-2-8'; CHANGE MASTER TO MASTER_HOST='db0', MASTER_PORT=3306"), "{by_gtid}");
        assert!(by_gtid.ends_with("MASTER_USE_GTID=slave_pos; START SLAVE;"), "{by_gtid}");
        assert!(by_file.starts_with("CHANGE MASTER 'b' TO MASTER_HOST='::1'"), "{by_file}");
        assert!(
            by_file.ends_with(
                "MASTER_LOG_FILE='bin.000004', MASTER_LOG_POS=77, MASTER_USE_GTID=no; START SLAVE 'b';"
            ),
            "{by_file}"
        );

        let [by_gtid, by_file] = say("9.7.4", channels()).try_into().unwrap();
        assert!(by_gtid.contains("SOURCE_HOST='db0', SOURCE_PORT=3306"), "{by_gtid}");
        assert!(
            by_gtid.ends_with("SOURCE_AUTO_POSITION=1 FOR CHANNEL ''; START REPLICA FOR CHANNEL '';"),
            "{by_gtid}"
        );
        assert!(
            by_file.contains(
                "SOURCE_LOG_FILE='bin.000004', SOURCE_LOG_POS=77, SOURCE_AUTO_POSITION=0 FOR CHANNEL 'b'"
            ),
            "{by_file}"
        );

        for version in ["11.8.6-MariaDB", "9.7.4"] {
            let bad = [
                channel("", "db0", None, false),
                channel("", "'; DROP", Some("bin.000003"), true),
                channel("c'", "db0", Some("bin.000003"), true),
                channel("", "db0", Some("b'; DROP"), false),
            ];
            assert_eq!(say(version, bad.to_vec()), [""; 0]);
        }
        assert_eq!(say("9.7.4", vec![channel("", "db0", None, true)]).len(), 1);
    }
}

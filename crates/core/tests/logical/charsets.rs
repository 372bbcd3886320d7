//! Text becomes the characters that a server takes it for, in every character set that is converted.

use holdfast_core::logical::{
    delimited::values::{Shown, can_show, shown},
    stored::definition::{ColumnDefinition, Form},
};

use super::*;

fn column(charset: &str) -> ColumnDefinition {
    ColumnDefinition {
        name: "c".into(),
        column_type: "text".into(),
        form: Form::Text,
        charset: Some(charset.to_owned()),
    }
}

/// Every code of one and two bytes: the result is what the server shows, or nothing; and no character set is
/// refused needlessly.
fn characters_are_those_of_the_server(kind: ServerKind) {
    let server = start(kind);
    let mut conn = server.conn().unwrap();
    conn.query_drop("CREATE DATABASE c").unwrap();
    conn.query_drop("CREATE TABLE c.n (n INT PRIMARY KEY)").unwrap();
    let digits = (0..16).map(|n| format!("SELECT {n} AS n")).collect::<Vec<_>>().join(" UNION ALL ");
    conn.query_drop(format!(
        "INSERT INTO c.n SELECT a.n + 16 * b.n + 256 * c.n + 4096 * d.n FROM ({digits}) a, ({digits}) b, ({digits}) c, ({digits}) d"
    ))
    .unwrap();
    let sets: Vec<(String, u32)> = conn
        .query("SELECT character_set_name, maxlen FROM information_schema.character_sets WHERE character_set_name <> 'binary' ORDER BY 1")
        .unwrap();
    let mut refused = Vec::new();
    for (charset, bytes_max) in &sets {
        let column = column(charset);
        if can_show(&column).is_err() {
            refused.push(charset.as_str());
            continue;
        }
        let code = if charset == "utf32" { "UNHEX(LPAD(HEX(n), 8, '0'))" } else { "CHAR(n)" };
        let codes = if *bytes_max == 1 { 256 } else { 65_536 };
        let rows: Vec<(Vec<u8>, Option<Vec<u8>>)> = conn
            .query(format!(
                "SELECT {code}, CAST(CONVERT(CONVERT({code} USING {charset}) USING utf8mb4) AS BINARY) FROM c.n WHERE n < {codes}"
            ))
            .unwrap();
        let (mut same, mut missed) = (0, 0);
        for (bytes, text) in rows {
            // The server replaces codes that are not characters by a question mark.
            let is_none = |text: &[u8]| text.contains(&b'?') && bytes != b"?";
            let Some(expected) = text.filter(|text| !is_none(text)) else { continue };
            match shown(&column, &bytes) {
                Some(Shown::Text(text)) => {
                    assert_eq!(text.as_bytes(), expected, "{kind} {charset} {bytes:02X?}");
                    same += 1;
                }
                _ => missed += 1,
            }
        }
        println!("{kind} {charset}: {same} the same, {missed} not shown");
        assert!(same > 0 && (charset.starts_with("u") || missed <= same / 100), "{kind} {charset}");
    }
    let expected = [
        "armscii8", "big5", "cp850", "cp852", "cp866", "dec8", "eucjpms", "gb18030", "gb2312", "geostd8",
        "greek", "hebrew", "hp8", "keybcs2", "koi8u", "latin5", "macce", "sjis", "swe7", "tis620", "ujis",
    ];
    refused.retain(|charset| !expected.contains(charset));
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn characters_are_those_of_mariadb() {
    characters_are_those_of_the_server(ServerKind::MariaDb118);
}

#[test]
fn characters_are_those_of_mysql() {
    characters_are_those_of_the_server(ServerKind::MySql97);
}

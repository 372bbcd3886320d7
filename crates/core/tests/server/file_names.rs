//! How names are spelled in file names: the servers are the reference.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use holdfast_formats::table_name::{decode, encode};

use super::*;

/// The characters that a name can have.
fn characters() -> impl Iterator<Item = char> {
    (1..=0xFFFF).filter_map(char::from_u32)
}

/// The whole basic plane, as MariaDB converts it, and back.
#[test]
fn mariadb_every_character_is_spelled_as_the_server_spells_it() {
    let hex = |units: &mut dyn Iterator<Item = u16>, width: usize| {
        units.fold(String::new(), |mut digits, unit| {
            write!(digits, "{unit:0width$X}").unwrap();
            digits
        })
    };
    let characters: Vec<char> = characters().collect();
    assert_eq!(characters.len(), 0xFFFF - 0x800);
    for kind in [ServerKind::MariaDb1011, ServerKind::MariaDb118] {
        let server = start(kind);
        for name in characters.chunks(256).map(String::from_iter) {
            // In hexadecimal digits, or the server would give the client the name again.
            let code = hex(&mut name.encode_utf16(), 4);
            let query = format!("SELECT HEX(CONVERT(_ucs2 X'{code}' USING filename))");
            let spelled: String = server.value(query).unwrap();
            let ours = encode(&name).unwrap();
            assert_eq!(hex(&mut ours.bytes().map(u16::from), 2), spelled, "{kind}: {ours}");
            assert_eq!(decode(&ours), Some(name), "{kind}");
        }
    }
}

/// MySQL converts nothing on request, so its own directories are looked at: every character that may have a code of its
/// own, and one of each 256 others.
#[test]
fn mysql_characters_are_spelled_as_the_server_spells_them() {
    // As many as fit into the name of a file if each takes five bytes.
    const IN_NAME: usize = 50;
    let server = start(ServerKind::MySql97);
    let own_code = |character: &char| encode(&character.to_string()).unwrap().len() < 5;
    let with_own_code: Vec<u32> =
        characters().filter(own_code).map(u32::from).filter(|&it| it > 0x7F).collect();
    assert_eq!(with_own_code.len(), 1510);
    // What is near them, too.
    let is_chosen = |character: &char| {
        let code = u32::from(*character);
        code <= 0xFF || code % 256 == 0 || with_own_code.iter().any(|it| it.abs_diff(code) <= 8)
    };
    let chosen: Vec<char> = characters().filter(is_chosen).collect();
    let names: BTreeSet<String> =
        chosen.chunks(IN_NAME).map(|name| format!("{}_", String::from_iter(name))).collect();
    server
        .exec_all(names.iter().map(|name| format!("CREATE DATABASE `{}`", name.replace('`', "``"))))
        .unwrap();
    let directories: BTreeSet<String> = fs::read_dir(server.datadir())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.contains('@'))
        .collect();
    let expected: BTreeSet<String> = names.iter().map(|name| encode(name).unwrap()).collect();
    assert_eq!(directories, expected);
    let read: BTreeSet<String> = directories.iter().map(|spelled| decode(spelled).unwrap()).collect();
    assert_eq!(read, names);
}

/// Names of devices, in any case, and what is nearly one.
#[test]
fn names_of_devices_are_spelled_as_the_server_spells_them() {
    let numbered = |device: &str| (0..=10).map(|number| format!("{device}{number}")).collect::<Vec<_>>();
    let mut names: BTreeSet<String> =
        ["con", "Prn", "aux", "NUL", "cons", "com", "lpt", "com¹", "lpt1x", "aux-"]
            .map(str::to_owned)
            .into_iter()
            .chain(["clock$", "CONIN$", "conout$", "nul.txt", "#con"].map(str::to_owned))
            .collect();
    names.extend(numbered("com"));
    names.extend(numbered("LPT"));
    on_each(|server| {
        server.exec("CREATE DATABASE of_devices").unwrap();
        for name in &names {
            server
                .exec_all([
                    format!("CREATE TABLE of_devices.`{name}` (i INT PRIMARY KEY)"),
                    format!("CREATE DATABASE `{name}`"),
                ])
                .unwrap();
        }
        let found: BTreeSet<String> = fs::read_dir(server.datadir().join("of_devices"))
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".ibd").map(str::to_owned))
            .collect();
        let expected: BTreeSet<String> = names.iter().map(|name| encode(name).unwrap()).collect();
        assert_eq!(found, expected, "{}", server.kind());
        let read: BTreeSet<String> = found.iter().map(|spelled| decode(spelled).unwrap()).collect();
        assert_eq!(read, names, "{}", server.kind());
        for directory in &expected {
            assert!(server.datadir().join(directory).is_dir(), "{}: {directory}", server.kind());
        }
    });
}

//! A user and a group, by name or number: `mysql`, `mysql:mysql`, `999:999`.

use std::{fs, str::FromStr};

/// Who restored files belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Whom the packages of MySQL and of MariaDB let the server run as.
const SERVER_USER: &str = "mysql";

impl Owner {
    /// The user of this host's servers, where it has one.
    pub(crate) fn of_servers() -> Option<Self> {
        SERVER_USER.parse().ok()
    }
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let group = fs::read_to_string("/etc/group").unwrap_or_default();
        parse(text, &passwd, &group)
    }
}

fn parse(text: &str, passwd: &str, group: &str) -> Result<Owner, String> {
    let (user, named_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let (uid, own_group) = match user.parse() {
        Ok(uid) => (uid, None),
        Err(_) => {
            let entry =
                find(passwd, user).ok_or_else(|| format!("there is no user \"{user}\" in /etc/passwd"))?;
            (number(&entry, 2)?, Some(number(&entry, 3)?))
        }
    };
    let gid = match (named_group, own_group) {
        (Some(name), _) => match name.parse() {
            Ok(gid) => gid,
            Err(_) => {
                let entry =
                    find(group, name).ok_or_else(|| format!("there is no group \"{name}\" in /etc/group"))?;
                number(&entry, 2)?
            }
        },
        (None, Some(gid)) => gid,
        (None, None) => return Err(format!("\"{text}\" names no group: write USER:GROUP")),
    };
    Ok(Owner { uid, gid })
}

fn find<'a>(table: &'a str, name: &str) -> Option<Vec<&'a str>> {
    table.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields.first() == Some(&name))
}

fn number(fields: &[&str], at: usize) -> Result<u32, String> {
    let number = fields.get(at).and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("the entry of {} has no number", fields.first().unwrap_or(&"?")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_found_by_name_and_number() {
        let (passwd, group) =
            ("root:x:0:0::/:/bin/sh\nmysql:x:101:102::/:/bin/false\n", "root:x:0:\ndba:x:33:mysql\n");
        let owner = |text| parse(text, passwd, group);
        assert_eq!(owner("mysql"), Ok(Owner { uid: 101, gid: 102 }));
        assert_eq!(owner("mysql:dba"), Ok(Owner { uid: 101, gid: 33 }));
        assert_eq!(owner("7:8"), Ok(Owner { uid: 7, gid: 8 }));
        assert!(owner("7").is_err() && owner("nobody:dba").is_err() && owner("mysql:nobody").is_err());
    }
}

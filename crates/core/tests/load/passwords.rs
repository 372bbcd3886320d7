//! Accounts with two passwords, and with passwords that expire.

use std::process::{Command, Stdio};

use super::*;

/// Whether an account can log in with a password.
fn lets_in(server: &Server, user: &str, password: &str) -> bool {
    let output = Command::new(server.kind().client_program().unwrap())
        .args(["--no-defaults", "--protocol=TCP", "--host=127.0.0.1", "--get-server-public-key", "--batch"])
        .args(["--connect-expired-password", "--execute=DO 1"])
        .arg(format!("--port={}", server.port()))
        .arg(format!("--user={user}"))
        .env("MYSQL_PWD", password)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // An account with an expired password can log in, in order to set another.
    let said = String::from_utf8_lossy(&output.stderr);
    let is_denied = said.contains("ERROR 1045");
    assert!(is_denied || output.status.success() || said.contains("ERROR 1820"), "{said}");
    !is_denied
}

/// Both passwords still work after a load, even one that died on the way, and after a script; an existing
/// account keeps its own passwords, even if tables are overwritten.
#[test]
fn both_passwords_of_an_account_come_back() {
    let kind = ServerKind::MySql97;
    let (stage, backup) = backed_up(
        kind,
        &[
            "CREATE USER two IDENTIFIED BY 'old1'",
            "ALTER USER two IDENTIFIED BY 'new1' RETAIN CURRENT PASSWORD PASSWORD HISTORY 5 PASSWORD REQUIRE CURRENT",
            "CREATE USER `t'w\\o` IDENTIFIED WITH sha256_password BY 'old2'",
            "ALTER USER `t'w\\o` IDENTIFIED BY 'new2' RETAIN CURRENT PASSWORD",
            "CREATE USER there IDENTIFIED BY 'old3'",
            "ALTER USER there IDENTIFIED BY 'new3' RETAIN CURRENT PASSWORD",
            "CREATE USER one IDENTIFIED BY 'new4'",
            "CREATE USER late IDENTIFIED BY 'old5'",
            "ALTER USER late IDENTIFIED BY 'new5' RETAIN CURRENT PASSWORD PASSWORD EXPIRE",
            "CREATE ROLE `r'q`",
            "GRANT `r'q` TO one",
            "SET DEFAULT ROLE `r'q` TO one",
            "CREATE DATABASE s",
            "CREATE TABLE s.t (a INT PRIMARY KEY)",
            "INSERT INTO s.t VALUES (1)",
        ],
    );
    let accounts = [("two", "1"), ("t'w\\o", "2"), ("late", "5")];
    for (user, number) in accounts {
        for word in ["old", "new"] {
            assert!(lets_in(&stage.source, user, &format!("{word}{number}")), "{user} {word}");
        }
    }
    let (loaded, overwritten, scripted) = (start(kind), start(kind), start(kind));
    for target in [&loaded, &overwritten, &scripted] {
        target.exec("CREATE USER there IDENTIFIED BY 'mine'").unwrap();
    }
    for target in [&loaded, &overwritten] {
        let mut orders = interrupted::Orders::new(&stage, backup, target);
        orders.point = Some(("load.rows.sent".to_owned(), 1));
        orders.overwrite = std::ptr::eq(target, &overwritten);
        assert!(!orders.carry_out().1);
        interrupted::until_unused(target);
        let report = load(&stage, backup, &orders.options()).unwrap();
        assert!(report.plan.is_continued && report.plan.left_out.is_empty(), "{report:?}");
    }
    for _ in 0..2 {
        // At the second time, all accounts exist.
        scripted.exec("DROP DATABASE IF EXISTS s").unwrap();
        crate::logical::load(&scripted, &stage.script(backup, None));
    }
    for target in [&loaded, &overwritten, &scripted] {
        for (user, number) in accounts {
            for word in ["old", "new"] {
                assert!(lets_in(target, user, &format!("{word}{number}")), "{user} {word}");
            }
            assert!(!lets_in(target, user, "other"));
        }
        let expired = "SELECT user FROM mysql.user WHERE password_expired = 'Y'";
        // A role has no password.
        assert_eq!(target.query::<String>(expired).unwrap(), ["late", "r'q"]);
        assert!(lets_in(target, "there", "mine") && !lets_in(target, "there", "old3"));
        assert!(!lets_in(target, "there", "new3"));
        assert!(lets_in(target, "one", "new4"));
        let second =
            "SELECT COUNT(*) FROM mysql.user WHERE user_attributes->'$.additional_password' IS NOT NULL";
        assert_eq!(target.query::<u64>(second).unwrap(), [3]);
    }
    assert_clean(&loaded);
    assert_clean(&overwritten);
}

/// An expired account keeps the rule by which its next password expires, its name does not pass for a
/// password, and everybody has what everybody had.
#[test]
fn what_else_accounts_have_comes_back() {
    let kind = ServerKind::MariaDb1011;
    let rule = "ALTER USER late@localhost PASSWORD EXPIRE INTERVAL 30 DAY";
    let (stage, backup) = backed_up(
        kind,
        &[
            "CREATE USER late@localhost IDENTIFIED BY 'x' PASSWORD EXPIRE",
            rule,
            "CREATE USER there@localhost IDENTIFIED BY 'x' PASSWORD EXPIRE",
            "ALTER USER there@localhost PASSWORD EXPIRE NEVER",
            "CREATE USER `x IDENTIFIED y`@localhost IDENTIFIED BY 'x'",
            "CREATE DATABASE s",
            "GRANT SELECT ON s.* TO `x IDENTIFIED y`@localhost",
            "GRANT SELECT ON *.* TO `x IDENTIFIED y`@localhost",
            "GRANT INSERT ON s.* TO PUBLIC",
        ],
    );
    let (loaded, scripted) = (start(kind), start(kind));
    for target in [&loaded, &scripted] {
        target.exec("CREATE USER there@localhost IDENTIFIED BY 'mine'").unwrap();
        target.exec("GRANT SELECT ON mysql.help_topic TO PUBLIC").unwrap();
    }
    let report = load(&stage, backup, &options(&loaded)).unwrap();
    let adapted = other_servers::said(&report.plan.adapted);
    assert!(
        adapted.contains("account PUBLIC: it exists already, keeps its privileges, and also gets"),
        "{adapted}"
    );
    for _ in 0..2 {
        // At the second time, all accounts exist.
        crate::logical::load(&scripted, &stage.script(backup, None));
    }
    for target in [&loaded, &scripted] {
        for query in ["SHOW CREATE USER late@localhost", "SHOW GRANTS FOR `x IDENTIFIED y`@localhost"] {
            let of = |server: &Server| server.query::<String>(query).unwrap();
            assert_eq!(of(target), of(&stage.source));
            assert_eq!(of(target).len(), 2);
        }
        assert_eq!(target.query::<String>("SHOW CREATE USER there@localhost").unwrap().len(), 1);
        let public = target.query::<String>("SHOW GRANTS FOR PUBLIC").unwrap().join("\n");
        assert!(public.contains("`s`.*") && public.contains("help_topic"), "{public}");
    }
    scripted.exec(rule.replace("INTERVAL 30 DAY", "NEVER")).unwrap();
    crate::logical::load(&scripted, &stage.script(backup, None));
    let kept = scripted.query::<String>("SHOW CREATE USER late@localhost").unwrap();
    assert!(kept[1].ends_with("NEVER"), "{kept:?}");
    assert_clean(&loaded);
}

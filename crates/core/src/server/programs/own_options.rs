//! Options for every server that we run ourselves, on restored files or for a dump. Such a server reaches
//! nobody, does nothing of its own accord, and reads no settings but ours. It need not be durable, since an
//! interrupted run starts over.

use std::{ffi::OsString, path::Path};

use holdfast_formats::Flavor;

/// The options to pass after `--no-defaults`.
pub(crate) fn own_options(flavor: Flavor, buffer_pool_bytes: u64) -> Vec<OsString> {
    const ALL: [&str; 10] = [
        "--skip-networking",
        "--skip-log-bin",
        "--skip-slave-start",
        "--general-log=OFF",
        "--slow-query-log=OFF",
        "--event-scheduler=OFF",
        "--innodb-doublewrite=OFF",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-load-at-startup=OFF",
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
    ];
    let of_flavor: &[&str] = match flavor {
        // Nobody talks TLS to this server, and servers would generate keys at their start.
        Flavor::MariaDb => &["--loose-wsrep-on=OFF", "--skip-ssl"],
        Flavor::MySql => &[
            "--persisted-globals-load=OFF",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            "--auto-generate-certs=OFF",
            "--loose-sha256-password-auto-generate-rsa-keys=OFF",
            "--caching-sha2-password-auto-generate-rsa-keys=OFF",
        ],
    };
    let mut options: Vec<OsString> = ALL.iter().chain(of_flavor).map(OsString::from).collect();
    options.push(format!("--innodb-buffer-pool-size={buffer_pool_bytes}").into());
    options
}

/// An option whose value is a path.
pub(crate) fn option_of(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

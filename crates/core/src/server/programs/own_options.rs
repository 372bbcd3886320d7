//! What every server is told that we run for ourselves, on restored files or for a dump: it reaches nobody, does nothing of
//! its own accord, and reads no settings but ours. It need not be durable, as what is cut off is begun again.

use std::{ffi::OsString, path::Path};

use holdfast_formats::Flavor;

/// These options, behind `--no-defaults`.
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
        // Nobody speaks TLS with it, and servers make keys at their start.
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

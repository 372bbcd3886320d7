//! A logical backup, or tables of a physical one, into a running server.

use clap::Args;
use holdfast_core::logical::load::{Conversion, Rename};

use super::{
    backup::{SelectionArgs, words},
    source::SourceArgs,
};

/// What is loaded, and how.
#[derive(Args, Debug)]
#[command(next_help_heading = "Into a running server")]
pub(crate) struct LoadArgs {
    /// Load into the running server that the options of the server lead to, instead of a directory: a logical backup, or tables
    /// of a physical one
    ///
    /// Of a physical backup, or of a moment behind one, only the files of the tables that are named with --table or --database are restored, with what recovery needs, and recovered by a server of the same series on this host. The server's options are typed, or in the option files of its clients; those of the configuration file are for backups and not used. Refuses to touch what is there. After any interruption the same command goes on. docs/load.md says more.
    #[arg(
        long,
        conflicts_with_all = ["target_dir", "delta", "no_prepare", "map", "sparse"]
    )]
    pub(crate) to_server: bool,

    /// Another name for a database or a table there, like shop=shop_copy or shop.orders=shop.orders_old; can be repeated
    #[arg(long = "as", value_name = "OLD=NEW", value_parser = rename, requires = "to_server")]
    pub(crate) renames: Vec<Rename>,

    /// Another engine for tables of one, like MyISAM=InnoDB; can be repeated
    #[arg(long = "engine", value_name = "OLD=NEW", value_parser = conversion, requires = "to_server")]
    pub(crate) engines: Vec<Conversion>,

    /// Another character set for the databases, tables and columns of one, like latin1=utf8mb4; can be repeated
    #[arg(long = "charset", value_name = "OLD=NEW", value_parser = conversion, requires = "to_server")]
    pub(crate) charsets: Vec<Conversion>,

    /// Drop what is there under the same names, and load anew; without it, that is refused
    #[arg(long, requires = "to_server")]
    pub(crate) overwrite: bool,

    /// Load without what cannot be on the target, and name it; without it, such a load is refused
    #[arg(long, requires = "to_server")]
    pub(crate) leave_out: bool,

    /// Write nothing of the load into the target's binlog: its replicas do not get it
    #[arg(long, requires = "to_server")]
    pub(crate) without_binlog: bool,

    /// MySQL: no redo log for the time of the load; if the server dies meanwhile, all it holds is lost
    #[arg(long, requires = "to_server")]
    pub(crate) disable_redo: bool,

    /// Do not read the rows again in the end
    #[arg(long, requires = "to_server")]
    pub(crate) no_verify: bool,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    #[command(flatten)]
    pub(crate) server: SourceArgs,
}

fn conversion(text: &str) -> Result<Conversion, String> {
    text.parse().map_err(words)
}

fn rename(text: &str) -> Result<Rename, String> {
    text.parse().map_err(words)
}

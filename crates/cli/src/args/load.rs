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
    /// Load into the running server that the connection options name, instead of into a directory: a logical
    /// backup, or tables of a physical one
    ///
    /// From a physical backup, or for a moment after one, only the files of the tables given with --table or
    /// --database, and what recovery needs, are restored, and a server of the same series on this host
    /// recovers them. Connection options are typed, or come from the client option files; [source] in the
    /// configuration file is for backups and is not used. Existing objects are not touched, unless
    /// --overwrite is given. After an interruption, run the same command again to continue. See docs/guide/load.md.
    #[arg(
        long,
        conflicts_with_all = ["target_dir", "delta", "no_prepare", "map", "sparse"]
    )]
    pub(crate) to_server: bool,

    /// Load a database or table under another name, like shop=shop_copy or shop.orders=shop.orders_old; can
    /// be repeated
    #[arg(long = "as", value_name = "OLD=NEW", value_parser = rename, requires = "to_server")]
    pub(crate) renames: Vec<Rename>,

    /// Load the tables of one engine into another, like MyISAM=InnoDB; can be repeated
    #[arg(long = "engine", value_name = "OLD=NEW", value_parser = conversion, requires = "to_server")]
    pub(crate) engines: Vec<Conversion>,

    /// Load databases, tables and columns of one character set in another, like latin1=utf8mb4; can be
    /// repeated
    #[arg(long = "charset", value_name = "OLD=NEW", value_parser = conversion, requires = "to_server")]
    pub(crate) charsets: Vec<Conversion>,

    /// Drop existing objects of the same names and load them again; without it, a load that meets any is
    /// refused
    #[arg(long, requires = "to_server")]
    pub(crate) overwrite: bool,

    /// Logical backups: leave out, and name, what the target cannot hold; without it, such a load is refused
    #[arg(long)]
    pub(crate) leave_out: bool,

    /// Make events of the scheduler disabled
    ///
    /// For a target on which the source's binlog is replayed after the backup (holdfast binlog cat
    /// --after): it has what the events did on the source, and they would do it a second time.
    #[arg(long, requires = "to_server")]
    pub(crate) disable_events: bool,

    /// Write nothing of the load to the target's binlog; its replicas do not get it
    #[arg(long, requires = "to_server")]
    pub(crate) without_binlog: bool,

    /// MySQL: disable the redo log during the load; if the server dies meanwhile, all its data is lost
    #[arg(long, requires = "to_server")]
    pub(crate) disable_redo: bool,

    /// MySQL: set local_infile = ON during the load, which costs the server less; it holds for all clients,
    /// and is set OFF again at the end
    #[arg(long, requires = "to_server")]
    pub(crate) enable_local_infile: bool,

    /// Skip reading all loaded rows again at the end
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

//! Which tables and tablespaces a server has, and how they are named.

mod inventory;
mod table_name;
mod tablespaces;

pub use inventory::{OtherTable, TableInventory};
pub use table_name::TableName;
pub(crate) use table_name::quoted;
pub use tablespaces::{
    TablespaceFile, TablespaceRow, mariadb_table_spaces, mariadb_tables, mysql_files, mysql_shared_spaces,
    tablespaces,
};

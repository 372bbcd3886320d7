//! Server error numbers that decisions depend on, under names that say what each means here. In parentheses the
//! servers' own names, by which their manuals list them.

/// A file cannot be looked at (`EE_STAT`, of the server's library).
pub(crate) const CANNOT_STAT_FILE: u16 = 13;

/// A file is not there, or cannot be opened (`EE_FILENOTFOUND`, of the server's library).
pub(crate) const FILE_NOT_FOUND: u16 = 29;

/// A file of a table cannot be opened (`ER_CANT_OPEN_FILE`).
pub(crate) const CANNOT_OPEN_FILE: u16 = 1016;

/// A file of a table is not there, or cannot be opened (`ER_FILE_NOT_FOUND`).
pub(crate) const CANNOT_FIND_FILE: u16 = 1017;

/// The row that is to be changed does not exist (`ER_KEY_NOT_FOUND`).
pub(crate) const NO_SUCH_ROW: u16 = 1032;

/// A table's index file is not one (`ER_NOT_KEYFILE`).
pub(crate) const NOT_A_KEY_FILE: u16 = 1034;

/// The index file of a table is of an old format (`ER_OLD_KEYFILE`).
pub(crate) const OLD_KEY_FILE: u16 = 1035;

/// `max_connections` is reached (`ER_CON_COUNT_ERROR`).
pub(crate) const TOO_MANY_CONNECTIONS: u16 = 1040;

/// The account has no right to the database (`ER_DBACCESS_DENIED_ERROR`).
pub(crate) const ACCESS_DENIED_DATABASE: u16 = 1044;

/// The account may not log in, or may not do this (`ER_ACCESS_DENIED_ERROR`).
pub(crate) const ACCESS_DENIED: u16 = 1045;

/// The database does not exist (`ER_BAD_DB_ERROR`).
pub(crate) const NO_SUCH_SCHEMA: u16 = 1049;

/// The server is shutting down (`ER_SERVER_SHUTDOWN`).
pub(crate) const SERVER_SHUTDOWN: u16 = 1053;

/// The column does not exist (`ER_BAD_FIELD_ERROR`).
pub(crate) const NO_SUCH_COLUMN: u16 = 1054;

/// The server does not know the statement (`ER_PARSE_ERROR`).
pub(crate) const SYNTAX_ERROR: u16 = 1064;

/// The session does not exist (`ER_NO_SUCH_THREAD`).
pub(crate) const UNKNOWN_THREAD: u16 = 1094;

/// Nobody may log in from this host (`ER_HOST_NOT_PRIVILEGED`).
pub(crate) const HOST_NOT_ALLOWED: u16 = 1130;

/// The account has no right to the table (`ER_TABLEACCESS_DENIED_ERROR`).
pub(crate) const TABLE_ACCESS_DENIED: u16 = 1142;

/// The account has no right to the column (`ER_COLUMNACCESS_DENIED_ERROR`).
pub(crate) const COLUMN_ACCESS_DENIED: u16 = 1143;

/// The table does not exist (`ER_NO_SUCH_TABLE`).
pub(crate) const NO_SUCH_TABLE: u16 = 1146;

/// A merge table has parts that are missing, or differ from it (`ER_WRONG_MRG_TABLE`).
pub(crate) const WRONG_MERGE_TABLE: u16 = 1168;

/// The server has no variable of this name (`ER_UNKNOWN_SYSTEM_VARIABLE`).
pub(crate) const UNKNOWN_SYSTEM_VARIABLE: u16 = 1193;

/// The table is marked as crashed (`ER_CRASHED_ON_USAGE`).
pub(crate) const CRASHED: u16 = 1194;

/// The table is marked as crashed, and its repair failed (`ER_CRASHED_ON_REPAIR`).
pub(crate) const CRASHED_IN_REPAIR: u16 = 1195;

/// The account's `max_user_connections` is reached (`ER_TOO_MANY_USER_CONNECTIONS`).
pub(crate) const TOO_MANY_USER_CONNECTIONS: u16 = 1203;

/// A lock was not granted in time (`ER_LOCK_WAIT_TIMEOUT`).
pub(crate) const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// Granting the lock would be a deadlock (`ER_LOCK_DEADLOCK`).
pub(crate) const LOCK_DEADLOCK: u16 = 1213;

/// A limit of the account is reached (`ER_USER_LIMIT_REACHED`).
pub(crate) const USER_LIMIT_REACHED: u16 = 1226;

/// The account lacks a privilege, which the message names (`ER_SPECIFIC_ACCESS_DENIED_ERROR`).
pub(crate) const SPECIFIC_ACCESS_DENIED: u16 = 1227;

/// The requested part of the binlog does not exist on the server (`ER_MASTER_FATAL_ERROR_READING_BINLOG`).
pub(crate) const READING_FAILED: u16 = 1236;

/// The server has no such storage engine (`ER_UNKNOWN_STORAGE_ENGINE`).
pub(crate) const UNKNOWN_ENGINE: u16 = 1286;

/// The storage engine, or something else, is switched off (`ER_FEATURE_DISABLED`).
pub(crate) const ENGINE_DISABLED: u16 = 1289;

/// A literal contains bytes that are invalid in its character set (`ER_INVALID_CHARACTER_STRING`).
pub(crate) const NOT_OF_CHARSET: u16 = 1300;

/// The statement was killed (`ER_QUERY_INTERRUPTED`).
pub(crate) const QUERY_INTERRUPTED: u16 = 1317;

/// The account lacks a right on a stored program (`ER_PROCACCESS_DENIED_ERROR`).
pub(crate) const PROGRAM_DENIED: u16 = 1370;

/// A table's definition has changed since the consistent view was opened (`ER_TABLE_DEF_CHANGED`).
pub(crate) const DEFINITION_CHANGED: u16 = 1412;

/// The plugin is not loaded (`ER_PLUGIN_IS_NOT_LOADED`).
pub(crate) const PLUGIN_NOT_LOADED: u16 = 1524;

/// A note on an event whose time has passed: it exists, but does not run (`ER_EVENT_EXEC_TIME_IN_THE_PAST`).
pub(crate) const EVENT_DISABLED: u16 = 1544;

/// MariaDB shows no events: they are disabled, or their table was damaged at the start
/// (`ER_EVENTS_DB_ERROR`).
pub(crate) const EVENTS_NOT_SHOWN: u16 = 1577;

/// A note on an event whose time has passed: it was dropped (`ER_EVENT_CANNOT_CREATE_IN_THE_PAST`).
pub(crate) const EVENT_GONE: u16 = 1588;

/// The account may not log in by this method (`ER_ACCESS_DENIED_NO_PASSWORD_ERROR`).
pub(crate) const ACCESS_DENIED_NO_PASSWORD: u16 = 1698;

/// The password must be changed before any other statement (`ER_MUST_CHANGE_PASSWORD`).
pub(crate) const PASSWORD_EXPIRED: u16 = 1820;

/// The password has expired, and no longer allows a login (`ER_MUST_CHANGE_PASSWORD_LOGIN`).
pub(crate) const PASSWORD_EXPIRED_LOGIN: u16 = 1862;

/// The session was killed (MariaDB, `ER_CONNECTION_KILLED`).
pub(crate) const CONNECTION_KILLED: u16 = 1927;

/// The storage engine does not have the table (`ER_NO_SUCH_TABLE_IN_ENGINE`).
pub(crate) const NO_SUCH_TABLE_IN_ENGINE: u16 = 1932;

/// The account is locked (MySQL, `ER_ACCOUNT_HAS_BEEN_LOCKED`).
pub(crate) const ACCOUNT_LOCKED: u16 = 3118;

/// The server wants TLS, or a socket (`ER_SECURE_TRANSPORT_REQUIRED`).
pub(crate) const SECURE_TRANSPORT_REQUIRED: u16 = 3159;

/// The account is locked (MariaDB, `ER_ACCOUNT_HAS_BEEN_LOCKED`).
pub(crate) const ACCOUNT_LOCKED_MARIADB: u16 = 4151;

/// A foreign key references columns that are not unique (MySQL, `ER_FK_NO_UNIQUE_INDEX_PARENT`).
pub(crate) const NOT_UNIQUE: u16 = 6125;

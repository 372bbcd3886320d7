//! Tests of the testkit itself on each kind of server.

#[path = "runner/lifecycle.rs"]
mod lifecycle;
#[path = "runner/oracle.rs"]
mod oracle;

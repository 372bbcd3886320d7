//! Reads a repository with code that shares nothing with the program, written from
//! `docs/reference/repository.md` alone.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use holdfast_testkit::kind::servers_dir;

use crate::{
    backups::{content, three},
    program::{PASSWORD, Program},
};

/// The Python installed by `scripts/servers reader`.
fn python() -> PathBuf {
    let python = servers_dir().unwrap().join("reader/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/servers reader", python.display());
    python
}

fn read(program: &Program, password: &str, run: &str, path: &str, output: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/reader/read_one_file.py");
    let mut reader = Command::new(python())
        .arg(script)
        .arg(program.repository())
        .args(["db1", run, path])
        .arg(output)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(reader.stdin.take().unwrap(), "{password}").unwrap();
    reader.wait_with_output().unwrap()
}

#[test]
fn a_script_written_from_the_specification_restores_a_file() {
    let program = three();
    let output = program.path("orders.ibd");
    let path = "shop/orders@002d1.ibd";
    for run in [1, 3] {
        let done = read(&program, PASSWORD, &run.to_string(), path, &output);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(fs::read(&output).unwrap() == content(run, 40), "backup {run} was read otherwise");
        fs::remove_file(&output).unwrap();
    }
    for (password, run, path) in
        [("battery staple", "3", path), (PASSWORD, "4", path), (PASSWORD, "3", "shop/x")]
    {
        assert!(!read(&program, password, run, path, &output).status.success(), "{password} {run} {path}");
        assert!(!output.exists());
    }
}

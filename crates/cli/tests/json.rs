use crate::program::{Program, bare, run};

#[test]
fn a_result_is_the_last_line_and_everything_else_is_silent() {
    let program = Program::new();
    let it = run(bare(&program.path("")).args(["version", "--json"])).expect_code(0);
    let last = it.last();
    assert_eq!((&last["type"], &last["exit_code"]), (&"result".into(), &0.into()));
    assert_eq!(last["data"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(it.err, "");
}

#[test]
fn an_error_is_an_object_too() {
    let program = Program::new();
    let last = run(bare(&program.path("")).args(["init", "--json"])).expect_code(2).last();
    assert_eq!((&last["type"], &last["kind"]), (&"error".into(), &"usage".into()));
    assert_eq!(last["exit_code"], 2);
    assert!(last["hint"].as_str().is_some_and(|hint| hint.contains("--repo")), "{last}");
    let last = run(bare(&program.path("")).args(["--json", "frobnicate"])).expect_code(2).last();
    assert_eq!((&last["verb"], &last["kind"]), (&"".into(), &"usage".into()));
}

//! `docs/reference/cli.md` is what clap prints for every verb. The test fails when the page is stale.

use std::{fmt::Write as _, path::Path};

/// Writes the page again. `CONTRIBUTING.md` names it, too.
const UPDATE: &str = "HOLDFAST_UPDATE_DOCS=1 cargo test -p holdfast --bins reference";

fn reference() -> String {
    let mut page = String::from(
        "# Command line\n\nThis page is what `holdfast --help` and `holdfast VERB --help` print; a test keeps it so.\n",
    );
    let mut command = super::command().term_width(110);
    command.build();
    let mut section = |title: &str, help: String| {
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        write!(page, "\n## {title}\n\n```text\n{}\n```\n", help.join("\n")).unwrap();
    };
    section("holdfast", command.render_long_help().to_string());
    for verb in command.get_subcommands_mut().filter(|verb| verb.get_name() != "help") {
        let title = format!("holdfast {}", verb.get_name());
        section(&title, verb.render_long_help().to_string());
        for action in verb.get_subcommands_mut() {
            section(&format!("{title} {}", action.get_name()), action.render_long_help().to_string());
        }
    }
    page
}

#[test]
fn cli_reference_is_what_the_program_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let now = reference();
    if std::env::var_os("HOLDFAST_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    if let Some((line, (is, should))) =
        stored.lines().zip(now.lines()).enumerate().find(|(_, (is, should))| is != should)
    {
        panic!(
            "docs/reference/cli.md is stale at line {}:\n  {is}\nshould be\n  {should}\n{UPDATE}",
            line + 1
        );
    }
    assert_eq!(stored.len(), now.len(), "docs/reference/cli.md is stale: {UPDATE}");
}

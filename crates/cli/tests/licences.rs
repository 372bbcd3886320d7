//! Checks `deny.toml` without cargo-deny: every crate that can be linked has an allowed licence.

use std::{collections::BTreeSet, path::Path, process::Command};

use serde_json::Value;

/// A licence expression: alternatives of conjunctions, with parentheses around either.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
    allowed: &'a BTreeSet<String>,
}

impl Expression<'_> {
    fn any(&mut self) -> bool {
        let mut good = self.all();
        while self.words.next_if_eq(&"OR").is_some() {
            good |= self.all();
        }
        good
    }

    fn all(&mut self) -> bool {
        let mut good = self.one();
        while self.words.next_if_eq(&"AND").is_some() {
            good &= self.one();
        }
        good
    }

    fn one(&mut self) -> bool {
        let Some(word) = self.words.next() else { return false };
        if word == "(" {
            let good = self.any();
            return self.words.next() == Some(")") && good;
        }
        let mut name = word.to_owned();
        if self.words.next_if_eq(&"WITH").is_some() {
            name = format!("{name} WITH {}", self.words.next().unwrap_or_default());
        }
        self.allowed.contains(&name)
    }
}

fn allows(allowed: &BTreeSet<String>, expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut it = Expression { words: words.into_iter().peekable(), allowed };
    it.any() && it.words.next().is_none()
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let deny: toml::Table = std::fs::read_to_string(root.join("deny.toml")).unwrap().parse().unwrap();
    let strings = |value: &toml::Value| -> BTreeSet<String> {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let allowed = strings(&deny["licenses"]["allow"]);
    let clarified: BTreeSet<&str> = deny["licenses"]["clarify"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["crate"].as_str().unwrap())
        .collect();
    assert!(allows(&allowed, "(MIT OR GPL-3.0) AND Unicode-3.0") && !allows(&allowed, "MIT AND GPL-3.0"));

    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bad: Vec<String> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|package| !clarified.contains(package["name"].as_str().unwrap()))
        .filter(|package| !allows(&allowed, package["license"].as_str().unwrap_or_default()))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(bad.is_empty(), "not allowed by deny.toml: {bad:#?}");
}

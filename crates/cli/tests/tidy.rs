//! What holds of the source itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// None of their modules use each other, directly or not. Those of `bench` do: its arguments name its
/// suites, the suites their scenarios, and those take the arguments.
const CRATES: [&str; 7] = ["cli", "core", "formats", "pipe", "repo", "stores", "testkit"];

/// The modules of a crate that are not tests, by path, each with its source up to its unit tests.
fn modules(root: &Path) -> BTreeMap<String, String> {
    const OF_TESTS: [&str; 2] = ["tests", "fuzzing"];
    let mut modules = BTreeMap::new();
    for path in files(root, "rs") {
        let below = path.strip_prefix(root).unwrap().with_extension("");
        let mut parts: Vec<&str> = below.iter().map(|part| part.to_str().unwrap()).collect();
        if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
            parts.pop();
        }
        if parts.iter().any(|part| OF_TESTS.contains(part)) {
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        // A file of tests may be declared anywhere; a module of tests ends its file.
        let end = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
        modules.insert(parts.join("::"), without_comments(&source[..end]));
    }
    modules
}

fn without_comments(source: &str) -> String {
    source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The paths of a `use` item's tree.
fn paths(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in rest.strip_suffix('}').unwrap_or(rest).chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().unwrap().push(c);
        }
    }
    parts.iter().filter(|part| !part.is_empty()).flat_map(|part| paths(&format!("{before}{part}"))).collect()
}

/// Every path that a source names: in `use` items, and from the crate or the module above anywhere.
fn named(source: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, _) in source.match_indices("use ") {
        let line = source[..at].rsplit('\n').next().unwrap_or_default().trim_start();
        if line.is_empty() || line.starts_with("pub") {
            let tree = source[at + 4..].split(';').next().unwrap_or_default();
            named.extend(paths(&tree.split_whitespace().collect::<String>()));
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in source.match_indices(start) {
            let is_whole = !source[..at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c));
            let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let path = source[at..].split(|c| !is_of_path(c)).next().unwrap_or_default();
            named.extend(is_whole.then(|| path.trim_end_matches(':').to_owned()));
        }
    }
    named
}

/// The module that a path leads to from `module`; `None`: to another crate.
fn target(modules: &BTreeMap<String, String>, module: &str, path: &str) -> Option<String> {
    let mut here: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").peekable();
    match parts.peek() {
        Some(&"crate") => here.clear(),
        Some(&("self" | "super")) => {}
        Some(first) if modules.contains_key(&[&here[..], &[first]].concat().join("::")) => {}
        _ => return None,
    }
    for part in parts {
        match part {
            "crate" | "self" => {}
            "super" => drop(here.pop()),
            part => here.push(part),
        }
    }
    while !here.is_empty() && !modules.contains_key(&here.join("::")) {
        here.pop();
    }
    Some(here.join("::"))
}

/// Of each folder: which of its modules uses which others of it, itself or through what is in it.
fn uses(modules: &BTreeMap<String, String>) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut uses: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, source) in modules {
        for path in named(source) {
            let Some(other) = target(modules, module, &path) else { continue };
            let (from, to): (Vec<&str>, Vec<&str>) =
                (module.split("::").collect(), other.split("::").collect());
            let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            // What contains the other is not beside it.
            if let (Some(one), Some(other)) = (from.get(shared), to.get(shared))
                && !one.is_empty()
                && !other.is_empty()
            {
                let folder = uses.entry(from[..shared].join("::")).or_default();
                folder.entry((*one).to_owned()).or_default().insert((*other).to_owned());
            }
        }
    }
    uses
}

/// Everything that a module uses, directly or not.
fn reached<'a>(uses: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for other in uses.get(module).into_iter().flatten() {
            if reached.insert(other.as_str()) {
                open.push(other);
            }
        }
    }
    reached
}

/// Modules of a folder that use each other, directly or not.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<&str>> {
    let is_back = |one: &str, other: &str| reached(uses, other).contains(one);
    let of = |one: &str| reached(uses, one).into_iter().filter(|other| is_back(one, other)).collect();
    uses.keys().map(|one| of(one)).filter(|circle: &Vec<&str>| !circle.is_empty()).collect()
}

/// Dependencies point one way, inside the crates, too: in no folder do modules use each other in a circle.
#[test]
fn no_module_uses_itself_through_others() {
    for name in CRATES {
        let modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"));
        let uses = uses(&modules);
        assert!(!uses.is_empty(), "{name}: nothing was understood");
        for (folder, uses) in &uses {
            assert_eq!(circles(uses), BTreeSet::new(), "{name}: {folder}");
        }
    }
}

/// The search for circles finds those through folders, and those of paths within functions.
#[test]
fn circles_are_found() {
    let modules: BTreeMap<String, String> = [
        ("", "mod one;\nmod two;\nmod three;\n"),
        ("one", "use crate::{three::Three, two::deep::Two};\n"),
        ("two", "mod deep;\n"),
        ("two::deep", "pub struct Two;\nfn f() { crate::one::f() }\n"),
        ("three", "pub struct Three;\n"),
    ]
    .into_iter()
    .map(|(module, source)| (module.to_owned(), source.to_owned()))
    .collect();
    let uses = uses(&modules);
    assert_eq!(circles(&uses[""]), BTreeSet::from([vec!["one", "two"]]));
}

/// A hint is one line, whatever the width of its source: its reader's terminal breaks it.
#[test]
fn no_hint_is_cut_in_mid_sentence() {
    for name in CRATES {
        let modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"));
        for (module, source) in modules {
            for (at, start) in source.match_indices("HINT: &str = \"") {
                let (hint, _) = source[at + start.len()..].split_once("\";").unwrap();
                let cut = hint.lines().rev().skip(1).find(|line| !line.ends_with('\\'));
                assert_eq!(cut, None, "{name}: {module}");
            }
        }
    }
}

/// Files below `folder` with this extension, but for what is built, and the results that `bench` writes.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && !["target", "results"].contains(&name) {
            files.extend(self::files(&path, extension));
        } else if path.is_file() && path.extension().is_some_and(|it| it == extension) {
            files.push(path);
        }
    }
    files
}

/// Prose is wrapped at about 110 columns. Tables, code, headings and what cannot be broken may be wider.
#[test]
fn prose_is_not_much_wider_than_code() {
    const COLUMNS_MAX: usize = 120;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wide = Vec::new();
    for path in [files(&root, "md"), files(&root, "rs")].concat() {
        let is_code = path.extension().is_some_and(|it| it == "rs");
        let mut is_fenced = false;
        for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let start = line.trim_start();
            is_fenced ^= start.starts_with("```");
            let is_prose = match is_code {
                true => start.starts_with("//"),
                false => !is_fenced && !start.starts_with(['|', '#']),
            };
            // A link, or what is stored, as one long word.
            let is_whole = line.contains("](") || start.starts_with("`{");
            if is_prose && !is_whole && line.chars().count() > COLUMNS_MAX {
                wide.push(format!("{}:{}", path.display(), at + 1));
            }
        }
    }
    assert_eq!(wide, Vec::<String>::new());
}

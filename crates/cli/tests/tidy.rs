//! What holds of the source itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// None of their modules import each other, directly or not. Those of `bench` do: its arguments name its
/// suites, the suites their scenarios, and those take the arguments.
const CRATES: [&str; 7] = ["cli", "core", "formats", "pipe", "repo", "stores", "testkit"];

/// The modules of a crate, by path, each with its source up to its unit tests.
fn modules(root: &Path) -> BTreeMap<String, String> {
    let mut modules = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(root).unwrap().with_extension("");
                let mut parts: Vec<&str> = below.iter().map(|part| part.to_str().unwrap()).collect();
                if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
                    parts.pop();
                }
                let source = fs::read_to_string(&path).unwrap();
                let end = source.find("#[cfg(test)]\nmod tests").unwrap_or(source.len());
                modules.insert(parts.join("::"), source[..end].to_owned());
            }
        }
    }
    modules
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

/// The module that a path leads to from `module`; `None`: to another crate.
fn target(modules: &BTreeMap<String, String>, module: &str, path: &str) -> Option<String> {
    let mut here: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").peekable();
    match parts.peek() {
        Some(&"crate") => here.clear(),
        Some(&("self" | "super")) => {}
        _ if modules.contains_key(&[module, path.split("::").next()?].join("::")) => {}
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

/// Which modules each imports, besides those that contain it or that it contains.
fn imports(modules: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<String>> {
    let within = |one: &str, other: &str| one.is_empty() || other.starts_with(&format!("{one}::"));
    modules
        .iter()
        .map(|(module, source)| {
            let starts = source.match_indices("use ").filter(|(at, _)| {
                let line = source[..*at].rsplit('\n').next().unwrap_or_default();
                line.is_empty() || line.starts_with("pub")
            });
            let trees = starts.filter_map(|(at, _)| source[at + 4..].split_once(';')).map(|(tree, _)| tree);
            let paths = trees.flat_map(|tree| paths(&tree.split_whitespace().collect::<String>()));
            let targets = paths.filter_map(|path| target(modules, module, &path));
            let others = targets.filter(|other| {
                other != module && !within(other, module) && !within(module, other) && !other.is_empty()
            });
            (module.as_str(), others.collect())
        })
        .collect()
}

/// Everything that a module imports, directly or not.
fn reached(imports: &BTreeMap<&str, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(module) = open.pop() {
        for other in imports.get(&*module).into_iter().flatten() {
            if reached.insert(other.clone()) {
                open.push(other.clone());
            }
        }
    }
    reached
}

/// Dependencies point one way, inside the crates, too.
#[test]
fn no_module_imports_itself_through_others() {
    for name in CRATES {
        let modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"));
        let imports = imports(&modules);
        assert!(imports.values().any(|others| !others.is_empty()), "{name}: nothing was understood");
        let reached: BTreeMap<&str, BTreeSet<String>> =
            imports.keys().map(|module| (*module, reached(&imports, module))).collect();
        let circles: BTreeSet<Vec<&str>> = reached
            .iter()
            .filter(|(module, others)| others.contains(**module))
            .map(|(module, others)| {
                let is_back = |other: &&&str| others.contains(**other) && reached[**other].contains(*module);
                reached.keys().filter(is_back).copied().collect()
            })
            .collect();
        assert_eq!(circles, BTreeSet::new(), "{name}");
    }
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

//! Maps collations and character sets to the names they have on another server.
//!
//! The one chosen compares as much alike as possible: the same algorithm, language and sensitivity, and if
//! there is a choice, one that does not ignore trailing spaces, so that keys stay unique.

use std::collections::BTreeSet;

/// MySQL's word for a language, and MariaDB's.
const LANGUAGES: [(&str, &str); 22] = [
    ("cs", "czech"),
    ("da", "danish"),
    ("de_pb", "german2"),
    ("eo", "esperanto"),
    ("es", "spanish"),
    ("es_trad", "spanish2"),
    ("et", "estonian"),
    ("hr", "croatian"),
    ("hu", "hungarian"),
    ("is", "icelandic"),
    ("la", "roman"),
    ("lt", "lithuanian"),
    ("lv", "latvian"),
    ("pl", "polish"),
    ("ro", "romanian"),
    ("sk", "slovak"),
    ("sl", "slovenian"),
    ("sv", "swedish"),
    ("tr", "turkish"),
    ("vi", "vietnamese"),
    ("nb", "danish"),
    ("nn", "danish"),
];

/// The best of `there` for a collation that is not among them; `None` if not even its character set is.
pub(super) fn nearest(name: &str, there: &BTreeSet<String>) -> Option<String> {
    let (charset, _) = name.split_once('_')?;
    candidates(name, charset).into_iter().find(|candidate| there.contains(candidate))
}

fn candidates(name: &str, charset: &str) -> Vec<String> {
    let mut found = Vec::new();
    let rest = &name[charset.len() + 1..];
    if rest == "0900_bin" {
        found.push(format!("{charset}_nopad_bin"));
    } else if let Some((language, sensitivity)) = rest.split_once("0900_") {
        // `0900_ai_ci`, `de_pb_0900_as_cs`.
        let language = language.trim_end_matches('_');
        let theirs = LANGUAGES.iter().find(|(ours, _)| *ours == language).map(|(_, theirs)| *theirs);
        if let Some(theirs) = theirs {
            found.push(format!("{charset}_uca1400_{theirs}_nopad_{sensitivity}"));
        }
        found.push(format!("{charset}_uca1400_nopad_{sensitivity}"));
        found.push(format!("{charset}_unicode_520_nopad_ci"));
    } else if let Some(after) = rest.strip_prefix("uca1400_") {
        let words: Vec<&str> = after.split('_').filter(|word| *word != "nopad").collect();
        let (language, sensitivity) = match words.as_slice() {
            [language, accent, case] => (Some(*language), format!("{accent}_{case}")),
            [accent, case] => (None, format!("{accent}_{case}")),
            _ => (None, "ai_ci".to_owned()),
        };
        // A case-sensitive collation is accent-sensitive, too.
        let sensitivity = if sensitivity == "ai_cs" { "as_cs".to_owned() } else { sensitivity };
        let ours = language.and_then(|language| LANGUAGES.iter().find(|(_, theirs)| *theirs == language));
        if let Some((ours, _)) = ours {
            found.push(format!("{charset}_{ours}_0900_{sensitivity}"));
        }
        found.push(format!("{charset}_0900_{sensitivity}"));
        found.push(format!("{charset}_unicode_520_ci"));
    } else if rest == "nopad_bin" {
        found.push(format!("{charset}_0900_bin"));
        found.push(format!("{charset}_bin"));
    } else if rest.contains("nopad") {
        found.push(format!("{charset}_{}", rest.replace("_nopad", "").replace("nopad_", "")));
    }
    let is_case_sensitive = rest.ends_with("_cs") || rest.ends_with("bin");
    if is_case_sensitive {
        found.push(format!("{charset}_bin"));
    }
    found.push(format!("{charset}_unicode_520_ci"));
    found.push(format!("{charset}_unicode_ci"));
    found.push(format!("{charset}_general_ci"));
    found.push(format!("{charset}_bin"));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ones() {
        let mariadb: BTreeSet<String> = [
            "utf8mb4_uca1400_nopad_ai_ci",
            "utf8mb4_uca1400_german2_nopad_as_cs",
            "utf8mb4_nopad_bin",
            "utf8mb4_bin",
            "latin1_swedish_ci",
        ]
        .map(str::to_owned)
        .into();
        let mysql: BTreeSet<String> = [
            "utf8mb4_0900_ai_ci",
            "utf8mb4_0900_as_cs",
            "utf8mb4_sv_0900_ai_ci",
            "utf8mb4_0900_bin",
            "latin1_swedish_ci",
        ]
        .map(str::to_owned)
        .into();
        for (name, there, expected) in [
            ("utf8mb4_0900_ai_ci", &mariadb, Some("utf8mb4_uca1400_nopad_ai_ci")),
            ("utf8mb4_de_pb_0900_as_cs", &mariadb, Some("utf8mb4_uca1400_german2_nopad_as_cs")),
            ("utf8mb4_0900_bin", &mariadb, Some("utf8mb4_nopad_bin")),
            ("gb18030_chinese_ci", &mariadb, None),
            ("utf8mb4_uca1400_ai_ci", &mysql, Some("utf8mb4_0900_ai_ci")),
            ("utf8mb4_uca1400_nopad_ai_cs", &mysql, Some("utf8mb4_0900_as_cs")),
            ("utf8mb4_uca1400_swedish_ai_ci", &mysql, Some("utf8mb4_sv_0900_ai_ci")),
            ("utf8mb4_nopad_bin", &mysql, Some("utf8mb4_0900_bin")),
            ("latin1_swedish_nopad_ci", &mysql, Some("latin1_swedish_ci")),
        ] {
            assert_eq!(nearest(name, there).as_deref(), expected, "{name}");
        }
    }
}

//! Members of `ENUM` and `SET`, which are stored by number, by the names that their type gives them.

/// What a value says: the name of an `ENUM`'s member (empty for the one of errors), or the names of a `SET`'s with commas
/// between them. `None` where the type or the value is not understood.
pub(super) fn text_of(column_type: &str, value: &[u8]) -> Option<String> {
    let names = names(column_type)?;
    let number: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    if is_set(column_type) {
        let is_there = |place: usize| number.checked_shr(place as u32).is_some_and(|rest| rest & 1 == 1);
        let known = u32::try_from(names.len()).ok()?;
        if number.checked_shr(known).is_some_and(|rest| rest > 0) {
            return None;
        }
        let there: Vec<String> = names
            .into_iter()
            .enumerate()
            .filter(|(place, _)| is_there(*place))
            .map(|(_, name)| name)
            .collect();
        return Some(there.join(","));
    }
    match usize::try_from(number).ok()?.checked_sub(1) {
        None => Some(String::new()),
        Some(place) => names.into_iter().nth(place),
    }
}

fn is_set(column_type: &str) -> bool {
    column_type.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("set("))
}

/// The names in `enum('a','it''s')`.
fn names(column_type: &str) -> Option<Vec<String>> {
    let (_, list) = column_type.split_once('(')?;
    let mut names = Vec::new();
    let mut chars = list.chars().peekable();
    loop {
        if chars.next()? != '\'' {
            return None;
        }
        let mut name = String::new();
        loop {
            match chars.next()? {
                '\'' if chars.next_if_eq(&'\'').is_some() => name.push('\''),
                '\'' => break,
                '\\' => name.push(match chars.next()? {
                    'n' => '\n',
                    'r' => '\r',
                    '0' => '\0',
                    other => other,
                }),
                other => name.push(other),
            }
        }
        names.push(name);
        match chars.next()? {
            ',' => {}
            ')' => return Some(names),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_members() {
        let of = |column_type: &str, value: &str| text_of(column_type, value.as_bytes());
        assert_eq!(of("enum('a','it''s','x,y)','\\\\')", "2").as_deref(), Some("it's"));
        assert_eq!(of("enum('a','it''s','x,y)','\\\\')", "3").as_deref(), Some("x,y)"));
        assert_eq!(of("enum('a','it''s','x,y)','\\\\')", "4").as_deref(), Some("\\"));
        assert_eq!(of("enum('a')", "0").as_deref(), Some(""));
        assert_eq!(of("enum('a')", "2"), None);
        assert_eq!(of("set('a','b','c')", "5").as_deref(), Some("a,c"));
        assert_eq!(of("set('a','b','c')", "0").as_deref(), Some(""));
        assert_eq!(of("set('a','b','c')", "8"), None);
        assert_eq!(of("set('a", "1"), None);
        let all: Vec<String> = (0..64).map(|n| format!("'{n}'")).collect();
        let all = format!("set({})", all.join(","));
        assert!(of(&all, "18446744073709551615").is_some_and(|text| text.ends_with(",62,63")));
    }

    proptest! {
        #[test]
        fn nothing_panics(column_type in ".{0,40}", value in "[0-9]{0,22}") {
            let _ = text_of(&column_type, value.as_bytes());
            let _ = text_of(&format!("set({column_type})"), value.as_bytes());
        }
    }
}

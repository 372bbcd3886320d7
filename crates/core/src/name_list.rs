//! Lists of names in messages, shortened.

use std::fmt::Display;

/// The first names, `most` at most, and how many more there are.
pub(crate) fn first_of<T: Display>(names: &[T], most: usize) -> String {
    let mut text: Vec<String> = names.iter().take(most).map(T::to_string).collect();
    if names.len() > most {
        text.push(format!("and {} more", names.len() - most));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_left_out_are_counted() {
        assert_eq!(first_of(&["a", "b"], 2), "a, b");
        assert_eq!(first_of(&["a", "b", "c", "d"], 2), "a, b, and 2 more");
    }
}

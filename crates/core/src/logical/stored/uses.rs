//! What the texts of views use, as servers print them: names with their databases.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::ViewDefinition;
use crate::logical::sql::{Kind, Token, tokens};

/// A `database`.`name` in the text of a view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Used {
    pub(crate) schema: String,
    pub(crate) name: String,
}

/// What a view's text uses, including the view itself. `alias`.`column` looks the same, so an alias in the
/// text is not taken for a database.
pub(crate) fn used(sql: &[u8]) -> BTreeSet<Used> {
    let (mut found, aliases) = names(sql);
    found.retain(|used| !aliases.contains(&used.schema));
    found
}

/// The other names in a view's text: aliases of tables, and columns without their tables.
pub(crate) fn aliases(sql: &[u8]) -> BTreeSet<String> {
    names(sql).1
}

fn names(sql: &[u8]) -> (BTreeSet<Used>, BTreeSet<String>) {
    // The definer's name comes before `VIEW`.
    let all: Vec<Token<'_>> = tokens(sql)
        .into_iter()
        .filter(|token| token.kind != Kind::Space)
        .skip_while(|token| !token.is_word("VIEW"))
        .collect();
    let is_point = |at: Option<usize>| at.and_then(|at| all.get(at)).is_some_and(|it| it.is_symbol(b'.'));
    let mut aliases = BTreeSet::new();
    let mut found = BTreeSet::new();
    for (at, token) in all.iter().enumerate() {
        let Some(schema) = token.name() else { continue };
        let (is_after, is_before) = (is_point(at.checked_sub(1)), is_point(Some(at + 1)));
        if !is_before {
            // Of `database`.`table`.`column` and `database`.`table` `alias`, only the alias. A name after AS
            // is a column.
            if !is_after && !at.checked_sub(1).is_some_and(|at| all[at].is_word("AS")) {
                aliases.insert(schema);
            }
        } else if !is_after && let Some(name) = all.get(at + 2).and_then(Token::name) {
            // A third name is a column, of a table named elsewhere or of MySQL's `database`.`alias`, unless
            // it is called.
            let is_of_three = is_point(Some(at + 3));
            let is_called = all.get(at + 5).is_some_and(|it| it.is_symbol(b'('));
            if !is_of_three || is_called {
                found.insert(Used { schema, name });
            }
        }
    }
    (found, aliases)
}

/// Sorts views after those that they use: a view created over a placeholder would take over what the
/// placeholder lacks, such as being writable. Otherwise their order is kept.
pub(crate) fn order(views: &mut Vec<ViewDefinition>) {
    let places: BTreeMap<(String, String), usize> =
        views.iter().enumerate().map(|(at, view)| ((view.schema.clone(), view.name.clone()), at)).collect();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); views.len()];
    let mut waits_for = vec![0_usize; views.len()];
    for (at, view) in views.iter().enumerate() {
        for used in used(&view.create.0) {
            if let Some(below) = places.get(&(used.schema, used.name)).filter(|below| **below != at) {
                users[*below].push(at);
                waits_for[at] += 1;
            }
        }
    }
    let mut ready: BTreeSet<usize> = (0..views.len()).filter(|at| waits_for[*at] == 0).collect();
    let mut rank = vec![usize::MAX; views.len()];
    let mut next = 0;
    while let Some(at) = ready.pop_first() {
        rank[at] = next;
        next += 1;
        for user in std::mem::take(&mut users[at]) {
            waits_for[user] -= 1;
            if waits_for[user] == 0 {
                ready.insert(user);
            }
        }
    }
    // Views that use each other in a circle come last.
    let mut ranked: Vec<(usize, ViewDefinition)> = rank.into_iter().zip(std::mem::take(views)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    views.extend(ranked.into_iter().map(|(_, view)| view));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logical::stored::definition::{Context, Sql};

    fn view(name: &str, from: &str) -> ViewDefinition {
        let create = format!(
            "CREATE ALGORITHM=UNDEFINED DEFINER=`s`@`%` SQL SECURITY DEFINER VIEW `s`.`{name}` AS select \
             `s`.`{from}`.`id` AS `id`,'`s`.`x`' AS `t`,`s`.`f`(`o`.`id`) AS `c` from (`s`.`{from}` join `d`.`o` `o`)"
        );
        ViewDefinition {
            schema: "s".to_owned(),
            name: name.to_owned(),
            create: Sql(create.into_bytes()),
            context: Context {
                sql_mode: None,
                charset: String::new(),
                collation: String::new(),
                schema_collation: String::new(),
            },
            columns: vec!["id".to_owned()],
        }
    }

    #[test]
    fn what_is_used() {
        let it = |schema: &str, name: &str| Used { schema: schema.to_owned(), name: name.to_owned() };
        let expected = [it("d", "o"), it("s", "f"), it("s", "t"), it("s", "v")];
        assert_eq!(used(&view("v", "t").create.0), BTreeSet::from(expected));
        let as_column = b"CREATE VIEW `s`.`v` AS select `s`.`t`.`id` AS `s` from `s`.`t`";
        assert_eq!(used(as_column), BTreeSet::from([it("s", "t"), it("s", "v")]));
        // An alias that MySQL qualifies with a database, and a function of a package.
        let of_alias =
            b"CREATE VIEW `s`.`v` AS select `d`.`a`.`id` AS `id`,`e`.`p`.`f`(1) AS `f` from `d`.`t` `a`";
        assert_eq!(used(of_alias), BTreeSet::from([it("d", "t"), it("e", "p"), it("s", "v")]));
        // An alias with the name of a database.
        let odd = b"CREATE VIEW `s`.`v` AS select `s`.`id` AS `id` from `d`.`t` `s`";
        assert_eq!(used(odd), BTreeSet::from([it("d", "t")]));
    }

    #[test]
    fn orders() {
        let mut views = vec![view("a", "c"), view("b", "t"), view("c", "d"), view("d", "t"), view("e", "a")];
        order(&mut views);
        let names: Vec<&str> = views.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["b", "d", "c", "a", "e"]);
        let mut circle = vec![view("a", "b"), view("b", "a"), view("c", "t")];
        order(&mut circle);
        let names: Vec<&str> = circle.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"]);
    }
}

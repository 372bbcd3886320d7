//! Partitions by the first column of the primary key.

use super::{column::Column, form::Form, keys::Part};
use crate::{data::names::quoted, rng::Rng};

const YEARS: [u64; 3] = [1995, 2010, 2020];

/// A partition clause; empty if there is no suitable column.
pub(super) fn random(columns: &[Column], primary: &[Part], is_mariadb: bool, rng: &mut Rng) -> String {
    let column = match primary.first() {
        Some(part) if part.prefix.is_none() => &columns[part.column],
        Some(_) => return String::new(),
        None => {
            let fit = |column: &&Column| {
                column.expression.is_none() && matches!(column.form, Form::Integer { .. } | Form::Date)
            };
            let Some(column) = columns.iter().find(fit) else { return String::new() };
            column
        }
    };
    let name = quoted(&column.name);
    match &column.form {
        Form::Integer { .. } => of_integer(&name, is_mariadb, rng),
        Form::Date | Form::DateTime(_) => {
            let mut clauses: Vec<String> = YEARS
                .iter()
                .map(|year| {
                    format!("PARTITION p{year} VALUES LESS THAN ('{year}-01-01') COMMENT='it''s {year}'")
                })
                .collect();
            clauses.push("PARTITION rest VALUES LESS THAN (MAXVALUE)".to_owned());
            let clauses = clauses.join(", ");
            match rng.below(2) {
                0 => format!(" PARTITION BY RANGE COLUMNS ({name}) ({clauses})"),
                _ => {
                    let clauses = clauses.replace("('", "(TO_DAYS('").replace("-01-01')", "-01-01'))");
                    format!(" PARTITION BY RANGE (TO_DAYS({name})) ({clauses})")
                }
            }
        }
        Form::Json | Form::Geometry(_) => String::new(),
        _ => format!(" PARTITION BY KEY ({name}) PARTITIONS {}", rng.between(1, 5)),
    }
}

fn of_integer(name: &str, is_mariadb: bool, rng: &mut Rng) -> String {
    let bounds = "(PARTITION `p``0` VALUES LESS THAN (1), PARTITION `p 1` VALUES LESS THAN (50), PARTITION `ß` VALUES LESS THAN MAXVALUE)";
    match rng.below(5) {
        0 => format!(" PARTITION BY HASH ({name}) PARTITIONS {}", rng.between(1, 6)),
        1 => format!(" PARTITION BY LINEAR HASH ({name} DIV 3) PARTITIONS 3"),
        2 => format!(" PARTITION BY RANGE ({name}) {bounds}"),
        3 => {
            let rest = if is_mariadb { ", PARTITION rest DEFAULT" } else { "" };
            let small: Vec<String> = (0..64).map(|number| number.to_string()).collect();
            format!(
                " PARTITION BY LIST ({name}) (PARTITION a VALUES IN (-1, NULL), PARTITION b VALUES IN ({}){rest})",
                small.join(",")
            )
        }
        _ => format!(" PARTITION BY RANGE ({name}) SUBPARTITION BY HASH ({name}) SUBPARTITIONS 2 {bounds}"),
    }
}

//! Columns: a type and its attributes.

use super::{Maker, form::Form, names, value};
use crate::{data::names::quoted, rng::Rng};

/// A column of a table.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) form: Form,
    pub(super) is_nullable: bool,
    pub(super) is_counted: bool,
    pub(super) has_default: bool,
    /// The expression of a generated column.
    pub(super) expression: Option<String>,
    /// `DEFAULT ..`, `ON UPDATE ..`.
    default: String,
    /// Attributes that can be left out.
    ornament: String,
}

impl Column {
    pub(super) fn of_form(maker: &mut Maker, form: Form, is_nullable: bool) -> Column {
        Column {
            name: maker.names.any(&mut maker.rng),
            form,
            is_nullable,
            is_counted: false,
            has_default: false,
            expression: None,
            default: String::new(),
            ornament: String::new(),
        }
    }

    /// Draws a column that is not generated.
    pub(super) fn random(maker: &mut Maker) -> Column {
        let form = Form::random(maker);
        let is_nullable = maker.rng.percent(65);
        let mut column = Column::of_form(maker, form, is_nullable);
        let is_mariadb = maker.is_mariadb;
        let rng = &mut maker.rng;
        if rng.percent(35)
            && let Some(default) = default(&column.form, is_nullable, is_mariadb, rng)
        {
            column.has_default = true;
            column.default = format!(" DEFAULT {default}");
        }
        if let Form::DateTime(fraction) | Form::Timestamp(fraction) = column.form
            && rng.percent(30)
        {
            column.default.push_str(&format!(" ON UPDATE CURRENT_TIMESTAMP({fraction})"));
        }
        if rng.percent(8) && (column.has_default || is_nullable) {
            column.ornament.push_str(" INVISIBLE");
        }
        if is_mariadb && rng.percent(5) {
            let name = quoted(&column.name);
            column.ornament.push_str(&format!(" CHECK ({name} IS NULL OR OCTET_LENGTH({name}) >= 0)"));
        }
        column.remark(rng);
        column
    }

    /// Draws a generated column based on `of`, if an expression exists for its type.
    pub(super) fn computed(maker: &mut Maker, of: &Column) -> Option<Column> {
        let name = quoted(&of.name);
        let rng = &mut maker.rng;
        let choices: Vec<(String, Form)> = match &of.form {
            Form::Integer { .. } => vec![
                (format!("{name} % 7"), Form::Integer { bytes: 8, is_unsigned: false, is_zerofill: false }),
                (
                    format!("COALESCE({name}, 0) DIV 3"),
                    Form::Decimal { digits: 30, scale: 0, is_unsigned: false },
                ),
                (
                    format!("{name} IS NULL"),
                    Form::Integer { bytes: 1, is_unsigned: false, is_zerofill: false },
                ),
            ],
            Form::Text { collation, .. } => vec![
                (
                    format!("CONCAT('<', {name}, '\\\\>')"),
                    Form::Text {
                        word: "TEXT",
                        length: 0,
                        collation: collation.clone(),
                        is_compressed: false,
                    },
                ),
                (
                    format!("LEFT({name}, 3)"),
                    Form::Text {
                        word: "VARCHAR",
                        length: 3,
                        collation: collation.clone(),
                        is_compressed: false,
                    },
                ),
                (
                    format!("CHAR_LENGTH({name})"),
                    Form::Integer { bytes: 8, is_unsigned: false, is_zerofill: false },
                ),
            ],
            Form::Bytes { .. } => vec![
                (
                    format!("OCTET_LENGTH({name})"),
                    Form::Integer { bytes: 8, is_unsigned: false, is_zerofill: false },
                ),
                (format!("SUBSTR({name}, 2, 4)"), Form::Bytes { word: "VARBINARY", length: 4 }),
            ],
            Form::Date | Form::DateTime(_) => vec![
                (format!("YEAR({name})"), Form::Integer { bytes: 4, is_unsigned: false, is_zerofill: false }),
                (format!("CAST({name} AS DATE)"), Form::Date),
            ],
            Form::Double | Form::Float => vec![(format!("{name} * 0.5"), Form::Double)],
            Form::Decimal { .. } => vec![(format!("{name} < 0"), Form::integer(rng))],
            _ => return None,
        };
        let (expression, form) = choices[rng.index(choices.len())].clone();
        let stored = rng.pick(&["VIRTUAL", "STORED"]);
        let mut column = Column::of_form(maker, form, true);
        column.expression = Some(format!(" GENERATED ALWAYS AS ({expression}) {stored}"));
        column.remark(&mut maker.rng);
        Some(column)
    }

    fn remark(&mut self, rng: &mut Rng) {
        if rng.percent(20) {
            self.ornament.push_str(&format!(" COMMENT {}", names::remark(rng, 300)));
        }
    }

    /// The definition as SQL; with higher plainness, fewer attributes follow the type.
    pub(super) fn sql(&self, plainness: u32) -> String {
        let mut sql = format!("{} {}", quoted(&self.name), self.form.sql());
        if let Some(expression) = &self.expression {
            sql.push_str(expression);
        } else {
            sql.push_str(if self.is_nullable { " NULL" } else { " NOT NULL" });
            if plainness < 2 {
                sql.push_str(&self.default);
            }
            if self.is_counted {
                sql.push_str(" AUTO_INCREMENT");
            }
        }
        if plainness < 1 {
            sql.push_str(&self.ornament);
        }
        sql
    }
}

fn default(form: &Form, is_nullable: bool, is_mariadb: bool, rng: &mut Rng) -> Option<String> {
    if is_nullable && rng.percent(20) {
        return Some("NULL".to_owned());
    }
    let now = |fraction: u64| format!("CURRENT_TIMESTAMP({fraction})");
    Some(match form {
        Form::DateTime(fraction) | Form::Timestamp(fraction) if rng.percent(50) => now(*fraction),
        Form::Integer { .. } if rng.percent(30) => "(1 + 2)".to_owned(),
        Form::Text { length, .. } if rng.percent(40) && (*length == 0 || *length > 40) => {
            rng.pick(&["(UUID())", "(CONCAT('a''', 'b\\\\'))", "(UPPER('x'))"]).to_owned()
        }
        Form::Text { .. } if form.is_long() && !is_mariadb => "('it''s')".to_owned(),
        Form::Text { length, .. } => {
            let text = names::remark(rng, if *length == 0 { 40 } else { *length as usize });
            // The default is drawn before it is known which characters the column's character set has.
            if text.is_ascii() { text } else { "''".to_owned() }
        }
        Form::Bytes { .. } if form.is_long() => "('\\0')".to_owned(),
        Form::Bytes { length, .. } => {
            let text = rng.pick(&["'\\0'", "x'00FF0A5C27'", "''"]);
            if *length < 5 { "''".to_owned() } else { text.to_owned() }
        }
        Form::Json => "('{\"a\": [1, null]}')".to_owned(),
        Form::Geometry("POINT" | "GEOMETRY") => "(POINT(1, 2))".to_owned(),
        Form::Geometry(_) => return None,
        Form::Members { word: "ENUM", members, .. } => names::literal(&members[rng.index(members.len())]),
        Form::Own("UUID") if rng.percent(50) => "UUID()".to_owned(),
        // Servers print a default of negative zero as zero.
        Form::Float | Form::Double => "1.5e0".to_owned(),
        _ => value::edge(form, rng),
    })
}

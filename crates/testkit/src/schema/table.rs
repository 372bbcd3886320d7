//! Tables: columns, a primary key, an engine and its options.

use super::{
    Maker,
    column::Column,
    form::Form,
    keys::{ForeignKey, Part, parts},
    names, partitions,
};
use crate::{data::names::quoted, rng::Rng};

/// The plainest level: only columns and a key.
pub(super) const PLAINNESS_MAX: u32 = 2;

/// A table that exists or is yet to be made.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) primary: Vec<Part>,
    pub(super) engine: &'static str,
    pub(super) foreign: Option<ForeignKey>,
    pub(super) has_partitions: bool,
    /// The number of rows that it is to get.
    pub(super) rows: u64,
    options: String,
    partitions: String,
}

impl Table {
    /// Draws a table; the first one is large.
    pub(super) fn random(maker: &mut Maker, schema: String, number: u64) -> Table {
        let name = maker.names.any(&mut maker.rng);
        let mut columns = Vec::new();
        let primary = primary(maker, &mut columns);
        let foreign = ForeignKey::random(maker, &schema, &name, &mut columns, &primary);
        for _ in 0..maker.rng.between(1, 9) {
            columns.push(Column::random(maker));
        }
        for _ in 0..maker.rng.below(3) {
            let of = maker.rng.index(columns.len());
            let of = columns[of].clone();
            if !of.is_counted
                && of.expression.is_none()
                && let Some(computed) = Column::computed(maker, &of)
            {
                let at = maker.rng.index(columns.len() + 1).max(primary.len());
                columns.insert(at, computed);
            }
        }
        let rng = &mut maker.rng;
        let engine = match rng.below(20) {
            0 | 1 => "MyISAM",
            2 if maker.is_mariadb => "Aria",
            3 if maker.is_mariadb => "MEMORY",
            _ => "InnoDB",
        };
        let rows = match number {
            0 => rng.between(1_200, 3_000),
            _ if rng.percent(8) => 0,
            _ => rng.between(1, 60),
        };
        let is_alone = foreign.is_none();
        let partitions = if engine == "InnoDB" && is_alone && rng.percent(25) {
            partitions::random(&columns, &primary, maker.is_mariadb, rng)
        } else {
            String::new()
        };
        let options = options(engine, maker);
        Table {
            schema,
            name,
            columns,
            primary,
            engine,
            foreign,
            has_partitions: false,
            rows,
            options,
            partitions,
        }
    }

    pub(super) fn quoted(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }

    /// The `CREATE TABLE` statement; the higher the plainness, the less the server can refuse.
    pub(super) fn create(&self, plainness: u32) -> String {
        let columns = self.columns.iter().filter(|column| plainness < 2 || column.expression.is_none());
        let mut elements: Vec<String> = columns.map(|column| column.sql(plainness)).collect();
        if !self.primary.is_empty() {
            elements.push(format!("PRIMARY KEY {}", parts(&self.columns, &self.primary)));
        }
        let tail = match plainness {
            0 => format!("{}{}", self.options, self.partitions),
            _ => String::new(),
        };
        format!("CREATE TABLE {} ({}) ENGINE={}{tail}", self.quoted(), elements.join(", "), self.engine)
    }

    /// The table as it is after creation at this plainness.
    pub(super) fn created(mut self, plainness: u32) -> Table {
        if plainness == PLAINNESS_MAX {
            self.columns.retain(|column| column.expression.is_none());
            self.columns.iter_mut().for_each(|column| column.has_default = false);
        }
        self.has_partitions = plainness == 0 && !self.partitions.is_empty();
        self
    }
}

/// Draws a primary key, whose columns come first in the table.
fn primary(maker: &mut Maker, columns: &mut Vec<Column>) -> Vec<Part> {
    let (count, is_counted) = match maker.rng.below(10) {
        0 | 1 => (0, false),
        2..5 => (1, true),
        5..8 => (1, false),
        8 => (2, false),
        _ => (3, false),
    };
    let mut primary = Vec::new();
    for number in 0..count {
        let form = if is_counted { Form::integer(&mut maker.rng) } else { Form::of_key(maker) };
        let mut column = Column::of_form(maker, form, false);
        column.is_counted = is_counted;
        primary.push(Part::of(number, &column, !is_counted, &mut maker.rng));
        columns.push(column);
    }
    primary
}

fn options(engine: &str, maker: &mut Maker) -> String {
    let mut options = String::new();
    let rng = &mut maker.rng;
    let format = match engine {
        "InnoDB" => row_format(maker.is_mariadb, rng),
        "MyISAM" => rng.pick(&["", " ROW_FORMAT=DYNAMIC", " CHECKSUM=1 DELAY_KEY_WRITE=1", " PACK_KEYS=1"]),
        "Aria" => {
            rng.pick(&["", " TRANSACTIONAL=0", " TRANSACTIONAL=1 PAGE_CHECKSUM=1", " ROW_FORMAT=DYNAMIC"])
        }
        _ => rng.pick(&["", " MAX_ROWS=100000"]),
    };
    options.push_str(format);
    if rng.percent(40) {
        options.push_str(&format!(" COLLATE={}", maker.collations.any(rng).name));
    }
    if rng.percent(10) {
        options.push_str(&format!(" AUTO_INCREMENT={}", rng.below(100) + 1));
    }
    if rng.percent(10) {
        options.push_str(" STATS_PERSISTENT=1 STATS_SAMPLE_PAGES=9 AVG_ROW_LENGTH=100");
    }
    if rng.percent(30) {
        options.push_str(&format!(" COMMENT={}", names::remark(rng, 300)));
    }
    if maker.is_mariadb && rng.percent(6) {
        options.push_str(" WITH SYSTEM VERSIONING");
    }
    options
}

fn row_format(is_mariadb: bool, rng: &mut Rng) -> &'static str {
    match rng.below(12) {
        0 => " ROW_FORMAT=COMPACT",
        1 => " ROW_FORMAT=REDUNDANT",
        2 => " ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4",
        3 => " ROW_FORMAT=DYNAMIC",
        4 if is_mariadb => " PAGE_COMPRESSED=1 PAGE_COMPRESSION_LEVEL=3",
        4 => " COMPRESSION='zlib'",
        5 if !is_mariadb => " TABLESPACE=innodb_system",
        _ => "",
    }
}

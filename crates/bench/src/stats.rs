//! Honest summaries of few numbers: medians with the extremes, never means.

use serde::{Deserialize, Serialize};

/// Median and extremes of some runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The number of values.
    pub(crate) count: usize,
}

impl Spread {
    /// Returns `None` if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let sorted = sorted(values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        Some(Spread { median: f64::midpoint(sorted[lower], sorted[upper]), min, max, count: sorted.len() })
    }

    /// A value that was measured only once.
    pub(crate) fn single(value: f64) -> Spread {
        Spread { median: value, min: value, max: value, count: 1 }
    }
}

/// The value that `percent` percent of the values do not exceed, by nearest rank.
pub(crate) fn percentile(values: impl IntoIterator<Item = f64>, percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::{Spread, percentile};

    #[test]
    fn a_spread_does_not_depend_on_order() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([7.0]), Some(Spread::single(7.0)));
        assert_eq!(
            Spread::of([3.0, 1.0, 2.0, 10.0]),
            Some(Spread { median: 2.5, min: 1.0, max: 10.0, count: 4 })
        );
    }

    #[test]
    fn percentiles_go_by_nearest_rank() {
        let values = || (1..=20).rev().map(f64::from);
        assert_eq!(percentile(values(), 95.0), Some(19.0));
        assert_eq!(percentile(values(), 100.0), Some(20.0));
        assert_eq!(percentile([4.0, 2.0], 95.0), Some(4.0));
        assert_eq!(percentile([], 95.0), None);
    }
}

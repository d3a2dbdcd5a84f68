//! Lists of processors, as cpuset(7) has them: `0-3,6`.

use std::ops::RangeInclusive;

/// Whether every processor of a list is in another. What is no list has none.
pub(super) fn lies_in(list: &str, other: &str) -> bool {
    let other: Vec<_> = ranges(other).collect();
    let has = |cpu: u32| other.iter().any(|range| range.contains(&cpu));
    ranges(list).all(|mut range| range.all(has))
}

fn ranges(list: &str) -> impl Iterator<Item = RangeInclusive<u32>> {
    list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_lie_in_each_other() {
        for (list, other) in [("0", "0-3"), ("1,3\n", "3,1"), ("2-3", "0-2,3-4"), ("", "1"), ("5", "0,5-6")] {
            assert!(lies_in(list, other), "{list} in {other}");
        }
        for (list, other) in [("0-1", "2-3"), ("0-3", "0-2"), ("4", ""), ("0-1", "1")] {
            assert!(!lies_in(list, other), "{list} in {other}");
        }
    }
}

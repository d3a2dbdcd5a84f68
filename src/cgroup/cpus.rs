//! Lists of processors: the kernel's, and those of policies.

use crate::policy::processors;

/// Whether every processor of a list is in another; not where one of them cannot be read.
pub(super) fn lies_in(list: &str, other: &str) -> bool {
    let (Some(list), Some(other)) = (processors(list.trim()), processors(other.trim())) else {
        return list.trim().is_empty();
    };
    let has = |cpu: u16| other.iter().any(|range| range.contains(&cpu));
    list.into_iter().flatten().all(has)
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

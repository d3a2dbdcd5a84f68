//! Pages of lists: which sandbox comes before which, and where the next page begins.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::wire::id::SandboxId;

/// Sandboxes of one page, if the client names no number; and the most.
pub(crate) const PAGE: usize = 100;

/// The place of a sandbox in lists. As the token of a page: the last one of the page before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Milliseconds since 1970.
    pub(crate) started: u64,
    pub(crate) id: SandboxId,
}

/// The latest first; `is_rising`: last.
pub(crate) fn order(one: &Place, other: &Place, is_rising: bool) -> Ordering {
    let falling = other.started.cmp(&one.started).then_with(|| one.id.cmp(&other.id));
    if is_rising { falling.reverse() } else { falling }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.started, self.id)
    }
}

/// What is no token of a page.
#[derive(Debug)]
pub(crate) struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (started, id) = text.split_once('_').ok_or(NoPlace)?;
        Ok(Self { started: started.parse().map_err(|_| NoPlace)?, id: id.parse().map_err(|_| NoPlace)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_its_text_and_the_latest_comes_first() {
        let place = |text: &str| text.parse::<Place>().expect("a place");
        let (old, new) = (place("5_w-aaaaaaaaaaaaaaaa"), place("6_w-aaaaaaaaaaaaaaab"));
        assert_eq!(old.to_string(), "5_w-aaaaaaaaaaaaaaaa");
        assert_eq!((order(&old, &new, false), order(&old, &new, true)), (Ordering::Greater, Ordering::Less));
        let same = place("6_w-aaaaaaaaaaaaaaac");
        assert_eq!(order(&new, &same, false), Ordering::Less);
        for bad in ["", "5", "_", "5_", "x_w-aaaaaaaaaaaaaaaa", "5_w-a", "-1_w-aaaaaaaaaaaaaaaa"] {
            bad.parse::<Place>().expect_err(bad);
        }
    }
}

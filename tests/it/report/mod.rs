//! What Kennel reports is true.

mod enforcement;

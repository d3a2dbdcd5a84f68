//! A macro for enums of fixed words. It defines the text of each variant once, for files, flags, messages and
//! reports.

/// Declares a public enum whose variants are written as one word each. `as` gives the key for error messages.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident as $key:literal {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All variants, in the order of their declaration.
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$variant),+];

            /// The word in policy files, flags and reports.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::report::error::policy::PolicyError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|word| word.as_str() == text).ok_or_else(|| {
                    let known = [$(concat!("`", $word, "`")),+].join(", ");
                    crate::report::error::policy::PolicyError::value($key, text, format!("expected one of {known}"))
                })
            }
        }
    };
}
pub(crate) use words;

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro writes pub, and this enum stays in the test")]
mod tests {
    words! {
        /// A word of the test.
        pub enum Fruit as "fruit" {
            /// Round.
            Apple = "apple",
            /// Long.
            StarFruit = "star-fruit",
        }
    }

    #[test]
    fn word_is_the_same_in_text_and_in_serde() {
        for fruit in Fruit::ALL {
            assert_eq!(fruit.to_string().parse::<Fruit>().expect("parses"), fruit);
            assert_eq!(serde_json::to_value(fruit).expect("serialises"), fruit.as_str());
        }
        assert_eq!(format!("{:>6}", Fruit::Apple), " apple");
    }

    #[test]
    fn unknown_word_lists_the_known_ones() {
        let error = "Apple".parse::<Fruit>().expect_err("words are lower case");
        assert_eq!(error.to_string(), "fruit `Apple`: expected one of `apple`, `star-fruit`");
    }
}

use proptest::prelude::*;

use super::*;
use crate::broker::pattern::ArgumentPart;

fn pattern(text: &str) -> ArgumentPattern {
    ArgumentPattern::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn values(pairs: &[(&str, &str)]) -> Values {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn never(_: &str) -> bool {
    false
}

#[test]
fn the_documented_pattern_renders_and_matches() {
    let create = pattern("issue create --title {title} [--body {body}]");
    let short = values(&[("title", "It works; rm -rf / $(x) *")]);
    let arguments = create.render(&short, never).expect("rendered");
    assert_eq!(arguments, ["issue", "create", "--title", "It works; rm -rf / $(x) *"], "no shell, no glob");
    assert_eq!(create.matches(&arguments, never), Some(short));
    let long = values(&[("title", "a b"), ("body", "c")]);
    let arguments = create.render(&long, never).expect("rendered");
    assert_eq!(arguments, ["issue", "create", "--title", "a b", "--body", "c"]);
    assert_eq!(create.matches(&arguments, never), Some(long));
    let empty = values(&[("title", ""), ("body", "")]);
    let arguments = create.render(&empty, never).expect("rendered");
    assert_eq!(arguments, ["issue", "create", "--title", ""], "an empty value leaves its group out");
    let given = ["issue", "create", "--title", "", "--body", ""].map(str::to_owned);
    assert_eq!(create.matches(&given, never), Some(empty), "an argument may be empty");
}

#[test]
fn a_group_is_there_whole_or_not_at_all() {
    let pattern = pattern("x [-r {owner}/{repo} {c}] {last}");
    let render = |pairs: &[(&str, &str)]| pattern.render(&values(pairs), never);
    assert_eq!(render(&[("last", "l")]), Ok(words("x l")));
    let whole = [("owner", "o"), ("repo", "r"), ("c", "c"), ("last", "l")];
    assert_eq!(render(&whole), Ok(words("x -r o/r c l")));
    assert_eq!(render(&whole[1..]), Err(RenderError::Half("owner".to_owned())));
    let some = [("owner", "o"), ("repo", ""), ("c", ""), ("last", "")];
    assert_eq!(render(&some), Err(RenderError::Half("repo".to_owned())));
    let none = [("owner", ""), ("repo", ""), ("c", ""), ("last", "l")];
    assert_eq!(render(&none), Ok(words("x l")));
    assert_eq!(render(&whole[..3]), Err(RenderError::Missing("last".to_owned())));
    assert_eq!(render(&[("last", "l"), ("other", "")]), Err(RenderError::Unknown("other".to_owned())));
    assert_eq!(render(&[("last", "a\0")]), Err(RenderError::Nul("last".to_owned())));
}

#[test]
fn options_are_no_values_where_an_argument_begins_with_one() {
    let pattern = pattern("x {a} --b={b} {c}/{d}");
    let render = |a: &str, b: &str, c: &str| {
        pattern.render(&values(&[("a", a), ("b", b), ("c", c), ("d", "d")]), |name| name == "c" && b == "lax")
    };
    assert_eq!(render("-f", "", ""), Err(RenderError::Dash("a".to_owned())));
    assert_eq!(render("f", "-f", "-c"), Err(RenderError::Dash("c".to_owned())));
    assert_eq!(render("f", "-f", "c"), Ok(words("x f --b=-f c/d")));
    assert_eq!(render("f", "lax", "-c"), Ok(words("x f --b=lax -c/d")));
    assert_eq!(pattern.matches(&words("x -f --b= c/d"), never), None);
    assert_eq!(pattern.matches(&words("x f --b= -c/d"), never), None);
    assert!(pattern.matches(&words("x f --b= -c/d"), |name| name == "c").is_some());
}

#[test]
fn matching_comes_back_from_what_only_seemed_to_fit() {
    let groups = pattern("x [{a}] [{b} y] z {c}");
    for (arguments, expected) in [
        ("x z 1", Some(&[("c", "1")][..])),
        ("x 1 z 2", Some(&[("a", "1"), ("c", "2")])),
        // The first group must give back the argument that the second needs.
        ("x 1 y z 2", Some(&[("b", "1"), ("c", "2")])),
        ("x 1 2 y z 3", Some(&[("a", "1"), ("b", "2"), ("c", "3")])),
        ("x z z z", Some(&[("a", "z"), ("c", "z")])),
        ("x z", None),
        ("x z 1 2", None),
        ("x 1 2 z 3", None),
        ("", None),
    ] {
        assert_eq!(groups.matches(&words(arguments), never), expected.map(values), "{arguments}");
    }
    // Inside one argument: the first literal that fits is not always the right one.
    for (text, argument, a, b) in [
        ("{a}/x", "p/x/x", "p/x", None),
        ("{a}-{b}.git", "a-b.git-c.git", "a", Some("b.git-c")),
        ("--repo={a}/{b}", "--repo=o/r", "o", Some("r")),
        ("{a}ab", "aab", "a", None),
    ] {
        let found = pattern(text).matches(&[argument.to_owned()], never).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(found.get("a").map(String::as_str), Some(a), "{text}");
        assert_eq!(found.get("b").map(String::as_str), b, "{text}");
    }
    assert_eq!(pattern("a{a}a").matches(&["a".to_owned()], never), None, "nothing is used twice");
}

#[test]
fn a_hostile_list_takes_no_time() {
    let groups: String = (0..100).map(|n| format!("[{{g{n}}}] ")).collect();
    let pattern = pattern(&format!("{groups} end"));
    let arguments = vec!["x".to_owned(); 60];
    let start = std::time::Instant::now();
    assert_eq!(pattern.matches(&arguments, never), None);
    let inner = ArgumentPattern::parse("{a}a{b}a{c}a{d}a{e}b").expect("a pattern");
    assert_eq!(inner.matches(&["a".repeat(1 << 20)], never), None);
    assert!(start.elapsed().as_secs() < 2, "{:?}", start.elapsed());
}

#[test]
fn what_is_no_pattern_is_told() {
    for (text, error) in [
        ("{", PatternError::Brace("{".to_owned())),
        ("a}", PatternError::Brace("a}".to_owned())),
        ("{}", PatternError::Brace("{}".to_owned())),
        ("{a b}", PatternError::Brace("{a".to_owned())),
        ("{1}", PatternError::Brace("{1}".to_owned())),
        ("{a{b}}", PatternError::Brace("{a{b}}".to_owned())),
        ("[{a}", PatternError::Open("[{a}".to_owned())),
        ("{a}]", PatternError::Bracket("{a}]".to_owned())),
        ("[x [{a}] ]", PatternError::Bracket("[{a}]".to_owned())),
        ("[[{a}]]", PatternError::Bracket("[[{a}]]".to_owned())),
        ("[{a}][{b}]", PatternError::Bracket("[{a}][{b}]".to_owned())),
        ("[--verbose]", PatternError::NoPlaceholder("[--verbose]".to_owned())),
        ("[]", PatternError::NoPlaceholder("[]".to_owned())),
        ("{a} x{a}", PatternError::Twice("a".to_owned())),
        ("{a}{b}", PatternError::Adjacent("{a}{b}".to_owned())),
        (&"a ".repeat(300), PatternError::Long),
    ] {
        assert_eq!(ArgumentPattern::parse(text), Err(error), "{text}");
    }
    assert_eq!(pattern("").matches(&[], never), Some(Values::new()), "a program without arguments");
}

/// A pattern with an unambiguous reading: no literal occurs in a value.
fn patterns() -> impl Strategy<Value = (String, Vec<(String, bool)>)> {
    let shape = prop_oneof![
        Just("%"),
        Just("--o=%"),
        Just("%/:"),
        Just("[:--flag %]"),
        Just("[% :sep]"),
        Just(":lit"),
        Just(":a%:b")
    ];
    prop::collection::vec(shape, 0..8).prop_map(|shapes| {
        let mut names = Vec::new();
        let words = shapes.iter().enumerate().map(|(at, shape)| {
            if shape.contains('%') {
                names.push((format!("n{at}"), shape.starts_with('[')));
            }
            // Each token gets its own literal, so that only one division exists.
            shape.replace(':', &format!(":{at}:")).replace('%', &format!("{{n{at}}}"))
        });
        (words.collect::<Vec<_>>().join(" "), names)
    })
}

/// Values without the separators of the pattern, and without a leading `-`.
fn value() -> impl Strategy<Value = String> {
    "[a-z .;$*\\\\'\"\\[\\]{}é]{0,12}"
}

proptest! {
    #[test]
    fn rendering_then_matching_gives_the_values_back(
        (text, names) in patterns(),
        given in prop::collection::vec((value(), any::<bool>()), 8),
    ) {
        let pattern = pattern(&text);
        let pairs = names.iter().zip(&given);
        // An empty value in a group is none.
        let wanted = pairs.filter(|((_, is_optional), (value, is_given))| {
            !is_optional || *is_given && !value.is_empty()
        });
        let values: Values = wanted.map(|((name, _), (value, _))| (name.clone(), value.clone())).collect();
        let arguments = pattern.render(&values, never).expect("all that is needed is there");
        prop_assert_eq!(pattern.matches(&arguments, never), Some(values), "{} {:?}", text, arguments);
    }

    #[test]
    fn what_matches_renders_to_the_same(
        (text, _) in patterns(),
        arguments in prop::collection::vec("(:[0-7]:|:[0-7]:lit|--o=|--flag|-x|[a-z/]|:[0-7]:sep){0,3}", 0..8),
    ) {
        let pattern = pattern(&text);
        // An argument in a group may be empty, and no value renders to that.
        let found = pattern.matches(&arguments, never);
        if let Some(values) = found.filter(|values| values.values().all(|value| !value.is_empty())) {
            prop_assert_eq!(pattern.render(&values, never), Ok(arguments), "{}", text);
        }
    }

    #[test]
    fn dividing_finds_a_way_wherever_there_is_one(
        token in "[ab]?(\\{x\\}[ab]{1,2})?(\\{y\\}[ab]{1,2})?(\\{z\\})?[ab]?",
        argument in "[ab]{0,7}",
    ) {
        prop_assume!(!token.is_empty());
        let token = Token::parse(&token, &token).expect("a token");
        prop_assert_eq!(token.fits(&argument), slow(&token.0, &argument));
    }

    #[test]
    fn no_text_is_too_strange(text in "[\\[\\]{} ab_1\\t-]{0,40}") {
        if let Ok(pattern) = ArgumentPattern::parse(&text) {
            prop_assert_eq!(ArgumentPattern::parse(&pattern.to_string()), Ok(pattern.clone()));
        }
    }
}

/// Tries every division.
fn slow(inputs: &[ArgumentPart], rest: &str) -> bool {
    match inputs.split_first() {
        None => rest.is_empty(),
        Some((ArgumentPart::Literal(literal), others)) => {
            rest.strip_prefix(literal.as_str()).is_some_and(|rest| slow(others, rest))
        }
        Some((ArgumentPart::Placeholder(_), others)) => (0..=rest.len()).any(|at| slow(others, &rest[at..])),
    }
}

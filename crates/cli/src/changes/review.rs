//! `kennel diff`, `kennel commit`, `kennel discard`: what commands changed with `--overlay` and Kennel keeps.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use kennel::{
    Error,
    client::Client,
    image::{ImageError, Store},
    internal::escape::harmless,
    overlay::{
        Change, ChangeKind, Committed, Conflicts, Discarded, ImageReview, KeptChanges, Refusal, Refused,
    },
    report::ListenError,
};

use crate::{
    args::changes::{CommitArguments, Diff, Part, Place},
    changes::{
        diff::{self, Entry, LARGEST, Reviewed},
        hunks::{CONTEXT, Counts, Format},
        lines, pager, renames,
    },
    owner,
    process::exit_status::FAILED,
    report,
    terminal::{
        progress,
        style::{self, Paint},
        table::Table,
    },
};

/// Runs `kennel diff`.
pub(crate) fn diff(diff: &Diff) -> Result<ExitCode, Error> {
    if let (true, Some((session, paths))) = (diff.image, diff.words.split_first()) {
        let paths: Vec<PathBuf> = paths.iter().map(|path| in_root(Path::new(path))).collect();
        let place = format!("in the image of session {}", session.display());
        return show(diff, &of_image(session)?, &paths, &place);
    }
    if let Some(code) = as_owner(&diff.place)? {
        return Ok(code);
    }
    match find(&diff.place, &diff.words)? {
        Some(Meant { kept, paths, .. }) => show(diff, &kept.review()?, &paths, &place(&kept, &paths)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// What commands of a running session changed in its image so far.
fn of_image(session: &OsStr) -> Result<ImageReview, Error> {
    let snapshot = Client::connect(&session.to_string_lossy())?.snapshot()?;
    let name = snapshot.image().to_string();
    let image = Store::open_default()?.find(&name.parse()?)?;
    ImageReview::of(&snapshot, image.ok_or(ImageError::NotFound { name })?)
}

/// A path of an image, relative to its root.
fn in_root(path: &Path) -> PathBuf {
    normal(path.strip_prefix("/").unwrap_or(path))
}

/// Prints a diff.
fn show(diff: &Diff, review: &dyn Reviewed, paths: &[PathBuf], place: &str) -> Result<ExitCode, Error> {
    let paint = Paint::stdout();
    let shown = Shown::of(review, paths);
    if shown.entries.is_empty() {
        report::say(format_args!("kennel: nothing was changed {place}"));
        return Ok(ExitCode::SUCCESS);
    }
    let format = Format { paint, context: diff.unified.unwrap_or(CONTEXT) };
    let mut totals = Totals::default();
    let mut rows = Vec::new();
    let mut output = pager::Output::open(!diff.no_pager);
    for entry in &shown.entries {
        if !output.is_read() {
            break;
        }
        let (text, counts) = shown.render(entry, format);
        totals.add(entry, counts);
        match diff.stat {
            true => rows.push((entry, counts)),
            false => output.print(&text)?,
        }
    }
    if diff.stat {
        output.print(&stat(&rows, paint))?;
    }
    output.print(&format!("{}\n", totals.line(paint)))?;
    output.close();
    Ok(ExitCode::SUCCESS)
}

/// Runs this command line as the owner of the workspace, if it asks for that.
fn as_owner(place: &Place) -> Result<Option<ExitCode>, Error> {
    let asked = owner::Request { workspace: place.workspace.as_deref(), ..owner::Request::default() };
    owner::choose(&place.owner, asked)
}

/// The whole diff of kept changes, for `kennel run --diff`: one text for each change, and the line that sums
/// it up.
pub(crate) fn whole(kept: &KeptChanges, paint: Paint) -> Result<Vec<String>, Error> {
    let review = kept.review()?;
    let shown = Shown::of(&review, &[]);
    let mut totals = Totals::default();
    let mut texts = Vec::new();
    for entry in &shown.entries {
        let (text, counts) = shown.render(entry, Format { paint, context: CONTEXT });
        totals.add(entry, counts);
        texts.push(text.trim_end_matches('\n').to_owned());
    }
    if !texts.is_empty() {
        texts.push(totals.line(paint));
    }
    Ok(texts)
}

/// Runs `kennel commit`.
pub(crate) fn commit(arguments: &CommitArguments) -> Result<ExitCode, Error> {
    let part = &arguments.part;
    if let Some(code) = as_owner(&part.place)? {
        return Ok(code);
    }
    let Some(Meant { kept, paths, words }) = find(&part.place, &part.words)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let conflicts = if arguments.force { Conflicts::Overwrite } else { Conflicts::Refuse };
    if arguments.force && words == 0 {
        return Err(Error::Command {
            what: "flag",
            value: "--force".to_owned(),
            reason: "it needs a PATH: name what replaces the work of others".to_owned(),
        });
    }
    let Committed { applied, refused, left, denials, .. } =
        progress::during("committing changes", || commit_kept(&kept, &paths, conflicts))?;
    let unasked = refused.iter().map(|refused| &refused.change).chain(&left);
    let unknown = report_unknown(applied.iter().chain(unasked), &paths);
    if unknown == paths.len() && unknown > 0 {
        return Ok(FAILED.into());
    }
    let paint = Paint::stdout();
    report::print(lines(&applied, paint).as_bytes())?;
    for denial in &denials {
        report::say(format_args!("kennel: note: {}: {}", denial.subject, denial.reason));
    }
    report_refused(&refused);
    report_choice(&refused, kept.session.as_deref());
    let mut said = vec![count(applied.len(), "committed")];
    said.extend((!refused.is_empty()).then(|| format!("{} not committed", refused.len())));
    end(&said.join(", "), left.len() + refused.len(), paint)?;
    Ok(if refused.is_empty() && unknown == 0 { ExitCode::SUCCESS } else { FAILED.into() })
}

/// Commits in the session that the changes belong to, if it runs: only that may.
fn commit_kept(kept: &KeptChanges, paths: &[PathBuf], conflicts: Conflicts) -> Result<Committed, Error> {
    let client = kept.session.as_deref().map(Client::connect);
    let committed = match client {
        Some(Err(Error::Listen(ListenError::NotRunning { .. }))) | None => None,
        Some(client) => client?.commit_kept(kept, paths, conflicts)?,
    };
    committed.map_or_else(|| kept.commit(paths, conflicts), Ok)
}

/// Says what was not committed.
pub(crate) fn report_refused(all: &[Refused]) {
    for refused in all {
        report::say(format_args!("kennel: not committed: {}: {}", refused.change, refused.refusal));
    }
}

/// Says what helps where others changed the workspace.
pub(crate) fn report_choice(all: &[Refused], session: Option<&str>) {
    if all.iter().any(|refused| refused.refusal == Refusal::Conflict) {
        let name = session.map(|session| format!("{session} ")).unwrap_or_default();
        report::say(format_args!(
            "kennel: hint: kennel commit --force {name}PATH replaces what others wrote there, kennel discard {name}PATH \
             keeps it"
        ));
    }
}

/// Runs `kennel discard`.
pub(crate) fn discard(part: &Part) -> Result<ExitCode, Error> {
    if let Some(code) = as_owner(&part.place)? {
        return Ok(code);
    }
    let Some(Meant { kept, paths, .. }) = find(&part.place, &part.words)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let Discarded { dropped, left, .. } = progress::during("dropping changes", || kept.discard(&paths))?;
    let unknown = report_unknown(dropped.iter().chain(&left), &paths);
    if unknown == paths.len() && unknown > 0 {
        return Ok(FAILED.into());
    }
    let paint = Paint::stdout();
    report::print(lines(&dropped, paint).as_bytes())?;
    end(&count(dropped.len(), "discarded"), left.len(), paint)?;
    Ok(if unknown == 0 { ExitCode::SUCCESS } else { FAILED.into() })
}

fn count(number: usize, done: &str) -> String {
    format!("{number} {} {done}", if number == 1 { "change" } else { "changes" })
}

/// Prints what was done, and how many changes are left.
fn end(done: &str, left: usize, paint: Paint) -> Result<(), Error> {
    let left = if left > 0 { format!("; {left} left: kennel diff") } else { String::new() };
    report::print(format!("{}\n", paint.paint(style::TITLE, &format!("{done}{left}"))).as_bytes())
}

/// Changes as lines, escaped.
fn lines(changes: &[Change], paint: Paint) -> String {
    changes.iter().map(|change| lines::change_line(change, paint) + "\n").collect()
}

/// Names the paths without a change. Returns how many there are.
fn report_unknown<'c>(all: impl Iterator<Item = &'c Change> + Clone, paths: &[PathBuf]) -> usize {
    let has_change = |path: &Path| all.clone().any(|change| change.path.starts_with(path));
    let unknown: Vec<&PathBuf> = paths.iter().filter(|path| !has_change(path)).collect();
    for path in &unknown {
        let is_around =
            |change: &&Change| change.kind == ChangeKind::Deleted && path.starts_with(&change.path);
        match all.clone().find(is_around) {
            Some(around) => report::say(format_args!(
                "kennel: {}: it is a part of the change {around}; name that path",
                path.display()
            )),
            None => report::say(format_args!("kennel: {}: nothing was changed there", path.display())),
        }
    }
    unknown.len()
}

// Which changes are meant.

/// The changes that the user means.
struct Meant {
    kept: KeptChanges,
    /// The paths in the workspace; none for all changes.
    paths: Vec<PathBuf>,
    /// How many paths were named; the workspace itself is one, too.
    words: usize,
}

/// Finds the kept changes that the user means, and the paths in them. Says so if there are none.
fn find(place: &Place, words: &[OsString]) -> Result<Option<Meant>, Error> {
    let here = env::current_dir().unwrap_or_default();
    let start = place.workspace.as_deref().unwrap_or(&here);
    if let Some(directory) = &place.overlay_upper {
        let found = KeptChanges::at(directory)?;
        return found.map_or_else(|| none(start), |found| with_paths(found, words, &here));
    }
    let all = KeptChanges::all()?;
    if let Some((session, rest)) = words.split_first()
        && let Some(found) = of_session(&all, session, start)
    {
        return with_paths(found, rest, &here);
    }
    match KeptChanges::find(start)?.or_else(|| only_session(&all, start)) {
        Some(found) => with_paths(found, words, &here),
        None => none(start),
    }
}

/// The changes of the session with that name; if it had several workspaces, those of the one around `start`.
fn of_session(all: &[KeptChanges], name: &OsStr, start: &Path) -> Option<KeptChanges> {
    let named: Vec<&KeptChanges> =
        all.iter().filter(|kept| kept.session.as_deref().is_some_and(|session| session == name)).collect();
    let here = named.iter().find(|kept| start.starts_with(&kept.workspace));
    here.or(named.first()).map(|kept| KeptChanges::clone(kept))
}

/// The changes of the only session with changes in the workspace around `start`.
fn only_session(all: &[KeptChanges], start: &Path) -> Option<KeptChanges> {
    let mut here = all.iter().filter(|kept| kept.session.is_some() && start.starts_with(&kept.workspace));
    here.next().filter(|_| here.next().is_none()).cloned()
}

/// Paths on the command line start at the current directory, if that is in the workspace.
fn with_paths(kept: KeptChanges, words: &[OsString], here: &Path) -> Result<Option<Meant>, Error> {
    let start = if here.starts_with(&kept.workspace) { here } else { &kept.workspace };
    let below = |word: &OsString| {
        let path = normal(&start.join(word));
        path.strip_prefix(&kept.workspace).map(Path::to_owned).map_err(|_| Error::Command {
            what: "path",
            value: word.to_string_lossy().into_owned(),
            reason: format!("it is not in the workspace {}", kept.workspace.display()),
        })
    };
    let mut paths = words.iter().map(below).collect::<Result<Vec<_>, _>>()?;
    // The workspace itself is everything.
    if paths.iter().any(|path| path.as_os_str().is_empty()) {
        paths.clear();
    }
    Ok(Some(Meant { kept, paths, words: words.len() }))
}

/// Resolves `.` and `..` by name: a path may be gone.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Says that there are no changes here, and where there are some.
fn none<T>(start: &Path) -> Result<Option<T>, Error> {
    report::say(format_args!("kennel: nothing is kept for {}", start.display()));
    for kept in KeptChanges::all()? {
        report::say(format_args!("kennel: note: changes are kept {}", place(&kept, &[])));
    }
    Ok(None)
}

fn place(kept: &KeptChanges, paths: &[PathBuf]) -> String {
    let workspace = kept.workspace.display();
    match (&kept.session, paths) {
        (None, []) => format!("in {workspace}"),
        (Some(session), []) => format!("by session {session} in {workspace}"),
        (_, [path]) => format!("at {}", path.display()),
        _ => "at these paths".to_owned(),
    }
}

// The diff.

/// The entries of a diff.
struct Shown<'r> {
    review: &'r dyn Reviewed,
    entries: Vec<Entry>,
}

impl<'r> Shown<'r> {
    fn of(review: &'r dyn Reviewed, paths: &[PathBuf]) -> Self {
        let files = review.files();
        let next = files.iter().skip(1).map(Some).chain([None]);
        let shown = files.iter().zip(next).filter(|(change, next)| !diff::is_shown_by(change, *next));
        let changes: Vec<Change> = shown.map(|(change, _)| change.clone()).collect();
        let is_wanted = |entry: &Entry| {
            let sides = entry.before.iter().chain(&entry.after);
            paths.is_empty()
                || sides.into_iter().any(|side| paths.iter().any(|path| side.path.starts_with(path)))
        };
        let entries = renames::entries(review, changes).into_iter().filter(is_wanted).collect();
        Self { review, entries }
    }

    fn render(&self, entry: &Entry, format: Format) -> (String, Counts) {
        let [before, after] = [&entry.before, &entry.after];
        let read = |change: &Option<Change>| {
            change.as_ref().map(|change| self.review.sides(change, LARGEST)).unwrap_or_default()
        };
        let sides = match entry.is_rename() {
            true => {
                let ([old, _], [_, new]) = (read(before), read(after));
                [old, new]
            }
            false => read(if after.is_some() { after } else { before }),
        };
        entry.render(&sides, format)
    }
}

/// What a diff comes to.
#[derive(Default)]
struct Totals {
    files: usize,
    renamed: usize,
    added: u64,
    removed: u64,
}

impl Totals {
    fn add(&mut self, entry: &Entry, counts: Counts) {
        self.files += 1;
        self.renamed += usize::from(entry.is_rename());
        self.added += u64::from(counts.added);
        self.removed += u64::from(counts.removed);
    }

    fn line(&self, paint: Paint) -> String {
        let Self { files, renamed, added, removed } = self;
        let mut line = format!("{files} {} changed", if *files == 1 { "file" } else { "files" });
        if *renamed > 0 {
            line += &format!(" ({renamed} renamed)");
        }
        line += ", ";
        line += &paint.paint(style::ADDED, &format!("+{added}"));
        line += " ";
        line + &paint.paint(style::REMOVED, &format!("−{removed}"))
    }
}

/// The widest name of a file in a list, and the widest bar beside it.
const NAME: usize = 60;
const BAR: u64 = 30;

/// The list of `--stat`: names, counts, bars.
fn stat(rows: &[(&Entry, Counts)], paint: Paint) -> String {
    let columns = Table::stdout().width().unwrap_or(NAME + 50);
    let most = columns.saturating_sub(40).clamp(20, NAME);
    let name = |entry: &Entry| {
        let [old, new] = entry.names();
        shortened(&if entry.is_rename() { format!("{old} → {new}") } else { new }, most)
    };
    let sum = |counts: &Counts| u64::from(counts.added) + u64::from(counts.removed);
    let width = rows.iter().map(|(entry, _)| textwrap::core::display_width(&name(entry))).max().unwrap_or(0);
    let largest = rows.iter().map(|(_, counts)| sum(counts)).max().unwrap_or(0).max(1);
    // Beside the bar stand a letter, the name, a count and the spaces between them; each of its two parts is
    // rounded up.
    let room = u64::try_from(columns.saturating_sub(width + 9)).unwrap_or(BAR).clamp(5, BAR);
    let bar = |count: u32| {
        let count = u64::from(count);
        let length = if largest <= room { count } else { (count * room).div_ceil(largest) };
        usize::try_from(length).unwrap_or_default()
    };
    let mut text = String::new();
    for (entry, counts) in rows {
        let name = name(entry);
        let pad = " ".repeat(width - textwrap::core::display_width(&name));
        let (added, removed) = ("+".repeat(bar(counts.added)), "-".repeat(bar(counts.removed)));
        let what = match counts.is_text {
            true => format!(
                "{:>4} {}{}",
                sum(counts),
                paint.paint(style::ADDED, &added),
                paint.paint(style::REMOVED, &removed)
            ),
            false => format!("{:>4}", kind(entry)),
        };
        text.push_str(&format!("{} {name}{pad} {}\n", letter(entry, paint), what.trim_end()));
    }
    text
}

/// What an entry without lines is.
fn kind(entry: &Entry) -> &'static str {
    match entry.after.as_ref().or(entry.before.as_ref()).map(|change| change.file) {
        Some(kennel::files::FileKind::Directory) => "dir",
        Some(kennel::files::FileKind::File) => "bin",
        _ => "-",
    }
}

fn letter(entry: &Entry, paint: Paint) -> String {
    match (&entry.before, &entry.after) {
        _ if entry.is_rename() => paint.paint(style::HUNK, "R"),
        (None, _) => paint.paint(style::ADDED, "A"),
        (_, None) => paint.paint(style::REMOVED, "D"),
        _ => paint.paint(style::HUNK, "M"),
    }
}

/// The end of a name that is too wide: that is what tells files apart.
fn shortened(name: &str, most: usize) -> String {
    if textwrap::core::display_width(name) <= most {
        return harmless(name);
    }
    let all: Vec<char> = name.chars().collect();
    let mut at = all.len().saturating_sub(most.saturating_sub(1));
    while textwrap::core::display_width(&all[at..].iter().collect::<String>()) >= most && at < all.len() {
        at += 1;
    }
    format!("…{}", all[at..].iter().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_by_name() {
        for (path, meant) in [("/w/a/../b", "/w/b"), ("/w/./a/", "/w/a"), ("/../w", "/w"), ("/w/a/..", "/w")]
        {
            assert_eq!(normal(Path::new(path)), Path::new(meant));
        }
    }

    #[test]
    fn a_name_that_is_too_wide_keeps_its_end() {
        assert_eq!(shortened("src/main.rs", 20), "src/main.rs");
        assert_eq!(shortened("a/very/long/path/to/main.rs", 10), "…o/main.rs");
    }
}

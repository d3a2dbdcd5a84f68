//! `kennel connector check`: what a program imports, whether its manifest covers that, and what it could do.

use std::process::ExitCode;

use kennel::{
    Error, Size,
    broker::Manifest,
    connector::{ConnectorError, GrantedProgram, Grants, Imports, Runtime},
};
use serde_json::json;

use super::{
    input,
    runtime::{failed, load, with_cache},
};
use crate::{args::manifest::Check, report, terminal::table::Table};

/// Runs `kennel connector check`.
pub(super) fn check(check: &Check) -> Result<ExitCode, Error> {
    let policy = load(&check.manifest)?;
    let manifest = policy.manifest();
    manifest.notes().iter().for_each(report::note);
    let program = input::program(&check.file)?;
    let found = with_cache(|| Runtime::builder().at_once(1), &policy).and_then(|(runtime, _)| {
        let imports = runtime.inspect(&program)?;
        Ok((imports, runtime.compile(manifest, &program).err()))
    });
    let (imports, refused) = match found {
        Ok(found) => found,
        Err(error) => return Ok(failed(&error)),
    };
    let found = Found { manifest, grants: Grants::of(manifest), imports, refused };
    let text = if check.json { found.json() } else { found.page() };
    report::print(text.as_bytes())?;
    Ok(found.refused.as_ref().map_or(ExitCode::SUCCESS, failed))
}

/// What there is to say about a program with its manifest.
struct Found<'m> {
    manifest: &'m Manifest,
    grants: Grants,
    imports: Imports,
    /// Why it does not load.
    refused: Option<ConnectorError>,
}

impl Found<'_> {
    fn json(&self) -> String {
        let Self { manifest, grants, imports, refused } = self;
        let names: Vec<_> = imports.all.iter().map(ToString::to_string).collect();
        let missing = imports.missing(manifest);
        let missing = missing.map(|import| json!({"import": import.to_string(), "reason": import.reason()}));
        let object = json!({
            "name": manifest.name(),
            "version": manifest.version(),
            "publisher": manifest.publisher(),
            "kind": kind(imports),
            "imports": names,
            "missing": missing.collect::<Vec<_>>(),
            "can_request": imports.can_request(),
            "can_spawn": imports.can_spawn(),
            "grants": grants,
            "failure": refused.as_ref().map(ConnectorError::failure),
        });
        report::json(&object).unwrap_or_default() + "\n"
    }

    fn page(&self) -> String {
        let table = Table::stdout();
        self.rows().iter().map(|(label, text)| table.entry(label, text, "")).collect()
    }

    /// Labels and texts.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let Self { manifest, grants, imports, .. } = self;
        let of = [(" ", manifest.version()), (" by ", manifest.publisher())];
        let of = of.map(|(word, text)| text.map(|text| format!("{word}{text}")).unwrap_or_default());
        let name = format!("{}{}", manifest.name().unwrap_or("without a name"), of.concat());
        let mut rows = vec![("connector", name), ("program", kind(imports).to_owned())];
        rows.extend(modules(imports).into_iter().map(|text| ("imports", text)));
        rows.extend(
            imports.missing(manifest).map(|import| ("not covered", format!("{import}: {}", import.reason()))),
        );
        rows.push(("requests", self.requests()));
        rows.extend(self.credential().map(|text| ("credential", text)));
        rows.push(("spawns", self.spawns()));
        if imports.can_spawn() && !grants.programs.is_empty() {
            rows.extend(self.of_spawns());
        }
        let memory = Size::from_bytes(grants.memory_bytes);
        rows.push(("limits of a call", format!("{memory} of memory, {} s", grants.wall_seconds)));
        rows
    }

    fn requests(&self) -> String {
        let hosts = self.grants.hosts.join(", ");
        match (self.imports.can_request(), hosts.is_empty()) {
            (true, false) => format!("to {hosts}"),
            (true, true) => "to no host".to_owned(),
            (false, false) => format!("none, although the manifest grants {hosts}"),
            (false, true) => "none".to_owned(),
        }
    }

    fn credential(&self) -> Option<String> {
        let credential = self.grants.credential.as_ref()?;
        let (kind, header, format) = (&credential.kind, &credential.header, &credential.format);
        Some(match self.imports.can_request() {
            true => format!("{kind}, sent as `{header}: {format}` in requests that ask for it, over https"),
            false => format!("{kind}, which nothing uses"),
        })
    }

    fn spawns(&self) -> String {
        let program = |GrantedProgram { path, hash, .. }: &GrantedProgram| match hash {
            Some(hash) => format!("{path} ({hash})"),
            None => path.clone(),
        };
        let programs = self.grants.programs.iter().map(program).collect::<Vec<_>>().join(", ");
        match (self.imports.can_spawn(), programs.is_empty()) {
            (true, false) => programs,
            (true, true) => "no program".to_owned(),
            (false, false) => format!("none, although the manifest grants {programs}"),
            (false, true) => "none".to_owned(),
        }
    }

    /// What spawned programs get.
    fn of_spawns(&self) -> Vec<(&'static str, String)> {
        let grants = &self.grants;
        let mut rows: Vec<(&str, String)> = Vec::new();
        rows.extend(
            grants.operations.iter().map(|(name, pattern)| ("operation", format!("{name}: {pattern}"))),
        );
        if grants.operations.is_empty() {
            rows.push(("arguments", "any".to_owned()));
        }
        let lists = [
            ("variables", &grants.variables),
            ("credentials", &grants.credential_variables),
            ("may read", &grants.read),
            ("may write", &grants.write),
            ("may reach", &grants.hosts),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        rows.extend(lists.map(|(label, list)| (label, list.join(", "))));
        rows
    }
}

fn kind(imports: &Imports) -> &'static str {
    if imports.is_component { "component" } else { "core module" }
}

/// The imports, a text for each module or interface.
fn modules(imports: &Imports) -> Vec<String> {
    let mut modules: Vec<(&str, Vec<&str>)> = Vec::new();
    for import in &imports.all {
        match modules.iter_mut().find(|(module, _)| *module == import.module) {
            Some((_, names)) => names.push(&import.name),
            None => modules.push((&import.module, vec![&import.name])),
        }
    }
    modules.iter().map(|(module, names)| format!("{module}: {}", names.join(", "))).collect()
}

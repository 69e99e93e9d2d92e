//! `-cpu`: QEMU's models of processors, and the one here that is most like each.

use ring3_vm::Model;

use super::{Reason, Translation, set};

/// The models that ring3's are named after or have for their nearest ones, and what those are. Those of 64 bits have no
/// 64-bit mode here.
pub(super) const MODELS: &[(&str, Model)] = &[
    ("486", Model::I486),
    ("pentium", Model::Pentium),
    ("pentium2", Model::Pentium3),
    ("pentium3", Model::Pentium3),
    ("pentium4", Model::Pentium4),
    ("qemu32", Model::Pentium4),
    ("kvm32", Model::Pentium4),
    ("coreduo", Model::Pentium4),
    ("athlon", Model::Pentium3),
    ("base", Model::Max),
    ("n270", Model::Max),
    ("qemu64", Model::Max),
    ("kvm64", Model::Max),
    ("core2duo", Model::Max),
    ("host", Model::Max),
    ("max", Model::Max),
];

/// What the names of later models begin with. They have more than `max` has.
const LATER: [&str; 24] = [
    "Conroe",
    "Penryn",
    "Nehalem",
    "Westmere",
    "SandyBridge",
    "IvyBridge",
    "Haswell",
    "Broadwell",
    "Skylake",
    "Cascadelake",
    "Cooperlake",
    "Icelake",
    "SapphireRapids",
    "GraniteRapids",
    "SierraForest",
    "Snowridge",
    "Denverton",
    "KnightsMill",
    "Dhyana",
    "EPYC",
    "Opteron",
    "phenom",
    "YongFeng",
    "ClearwaterForest",
];

/// What comes after the name, for those who run it under KVM or Windows: of no meaning to other guests.
const PARAVIRTUAL: [&str; 10] = [
    "kvm",
    "hv",
    "hypervisor",
    "migratable",
    "host-cache-info",
    "l3-cache",
    "topoext",
    "vendor",
    "enforce",
    "check",
];

/// `-cpu`: a model and features more or less.
pub(super) fn cpu(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut parts = value.split(',');
    let name = parts.next().unwrap_or_default();
    let (model, is_later) = model(name)?;
    let has = |name: &str| {
        let name = name.to_ascii_uppercase().replace(['-', '.'], "_");
        model.features().iter_names().any(|(known, _)| known == spelled(&name))
    };
    let (mut lacks, mut keeps) = (Vec::new(), Vec::new());
    for part in parts.filter(|part| !part.is_empty()) {
        let (name, wanted) = match (part.strip_prefix('+'), part.strip_prefix('-')) {
            (Some(name), _) => (name, true),
            (_, Some(name)) => (name, false),
            _ => match part.split_once('=') {
                Some((name, "off" | "no" | "false")) => (name, false),
                Some((name, _)) => (name, true),
                None => (part, true),
            },
        };
        let is_of = |prefix: &str| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_', '=']))
        };
        if PARAVIRTUAL.iter().any(|prefix| is_of(prefix)) {
            continue;
        }
        match (wanted, has(name)) {
            (true, false) => lacks.push(name),
            (false, true) => keeps.push(name),
            _ => {}
        }
    }
    let mut parts = Vec::new();
    if is_later {
        parts.push("the model here is max, which has what ring3 implements of it".to_owned());
    }
    if !lacks.is_empty() {
        parts.push(format!("it has no {}", lacks.join(", ")));
    }
    if !keeps.is_empty() {
        parts.push(format!("it has {} all the same", keeps.join(", ")));
    }
    if !parts.is_empty() {
        all.warn(&parts.join("; "));
    }
    set(&mut all.cpu, Some(model))
}

/// Another name for the same feature.
fn spelled(name: &str) -> &str {
    match name {
        "PNI" => "SSE3",
        "CLFLUSH" => "CLFSH",
        "CX8" | "CMPXCHG8B" => "CX8",
        name => name,
    }
}

/// The model here that is like QEMU's `name`, and whether that one has more.
pub(super) fn model(name: &str) -> Result<(Model, bool), Reason> {
    // A model of the machine's name, with the version that QEMU has behind it.
    let base = match name.rsplit_once("-v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    };
    let base = base.trim_end_matches("-i386-cpu").trim_end_matches("-x86_64-cpu");
    if let Some((_, model)) = MODELS.iter().find(|(known, _)| *known == base) {
        return Ok((*model, false));
    }
    if LATER.iter().any(|later| base.starts_with(later)) {
        return Ok((Model::Max, true));
    }
    let known: Vec<_> = MODELS.iter().map(|(name, _)| *name).collect();
    Err(format!(
        "there is no such model; there are {}, and QEMU's later ones as max",
        known.join(", ")
    ))
}

/// What `-cpu help` shows, in QEMU's form.
pub(super) fn help() -> String {
    let own = MODELS.iter().map(|(name, model)| format!("x86 {name:<20}  here: {model}"));
    let later = LATER.iter().map(|name| format!("x86 {name:<20}  here: max, which has less"));
    let models: Vec<_> = own.chain(later).collect();
    let names = Model::Max.features();
    let names: Vec<_> =
        names.iter_names().map(|(name, _)| name.to_ascii_lowercase().replace('_', ".")).collect();
    let (models, names) = (models.join("\n"), names.join(" "));
    format!("Available CPUs:\n{models}\n\nRecognized CPUID flags:\n  {names}\n")
}

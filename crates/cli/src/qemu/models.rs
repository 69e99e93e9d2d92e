//! `-cpu`: QEMU's models of processors, and the most similar model here for each.

use ring3_vm::Model;

use super::{Program, Reason, Translation, set};

/// QEMU's models for which ring3 has a model of the same name or a similar one.
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
    ("qemu64", Model::Qemu64),
    ("kvm64", Model::Qemu64),
    ("x86-64-v2", Model::X86_64_V2),
    ("Nehalem", Model::X86_64_V2),
    ("x86-64-v3", Model::X86_64_V3),
    ("core2duo", Model::Max),
    ("host", Model::Max),
    ("max", Model::Max),
];

/// Models of 64-bit processors that only QEMU's program for 64-bit systems shows as such, and what they are then.
const WITH_LONG_MODE: [(&str, Model); 3] =
    [("core2duo", Model::X86_64_V2), ("host", Model::X86_64_V3), ("max", Model::X86_64_V3)];

/// The beginnings of the names of other models of 64-bit processors, without AVX2.
const WITHOUT_AVX2: [&str; 11] = [
    "x86-64-v2-AES",
    "Conroe",
    "Penryn",
    "Nehalem",
    "Westmere",
    "SandyBridge",
    "IvyBridge",
    "Snowridge",
    "Denverton",
    "Opteron",
    "phenom",
];

/// Those of models with AVX2. They have more features than any here.
const WITH_AVX2: [&str; 15] = [
    "x86-64-v4",
    "Haswell",
    "Broadwell",
    "Skylake",
    "Cascadelake",
    "Cooperlake",
    "Icelake",
    "SapphireRapids",
    "GraniteRapids",
    "SierraForest",
    "KnightsMill",
    "Dhyana",
    "EPYC",
    "YongFeng",
    "ClearwaterForest",
];

/// Features after the name that matter only under KVM or to Windows.
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

/// `-cpu`: a model, and features to add or remove.
pub(super) fn cpu(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut parts = value.split(',');
    let name = parts.next().unwrap_or_default();
    let (model, is_later) = model(name, all.program)?;
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
        parts.push(format!("the model here is {model}, with the features that ring3 implements"));
    }
    if !lacks.is_empty() {
        parts.push(format!("it lacks {}", lacks.join(", ")));
    }
    if !keeps.is_empty() {
        parts.push(format!("it has {} nevertheless", keeps.join(", ")));
    }
    if !parts.is_empty() {
        all.warn(&parts.join("; "));
    }
    set(&mut all.cpu, Some(model))
}

/// Returns ring3's name of a feature that QEMU names differently.
fn spelled(name: &str) -> &str {
    match name {
        "PNI" => "SSE3",
        "CLFLUSH" => "CLFSH",
        "CX8" | "CMPXCHG8B" => "CX8",
        "ABM" => "LZCNT",
        name => name,
    }
}

/// Returns the model here that is like what QEMU's `program` calls `name`, and whether QEMU's has more features.
pub(super) fn model(name: &str, program: Program) -> Result<(Model, bool), Reason> {
    // QEMU may append a version to the name, or the type of the machine.
    let base = match name.rsplit_once("-v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    };
    let base = base.trim_end_matches("-i386-cpu").trim_end_matches("-x86_64-cpu");
    let is_meant = |known: &str| known == base || known == name;
    if let Some((known, model)) = MODELS.iter().find(|(known, _)| is_meant(known)) {
        let long = WITH_LONG_MODE.iter().find(|(long, _)| long == known);
        return Ok(match long.filter(|_| program == Program::For64Bits) {
            Some((_, model)) => (*model, false),
            None if *model == Model::X86_64_V3 => (later(program, *model), false),
            None => (*model, false),
        });
    }
    for (names, model) in [(&WITHOUT_AVX2[..], Model::X86_64_V2), (&WITH_AVX2, Model::X86_64_V3)] {
        if names.iter().any(|later| base.starts_with(later) || name.starts_with(later)) {
            return Ok((later(program, model), true));
        }
    }
    let known: Vec<_> = MODELS.iter().map(|(name, _)| *name).collect();
    Err(format!(
        "there is no such model; the models are {}, and QEMU's later ones as {}",
        known.join(", "),
        later(program, Model::X86_64_V3)
    ))
}

/// Returns `model`, or the one without a 64-bit mode: QEMU's program for 32-bit systems hides that of its models.
fn later(program: Program, model: Model) -> Model {
    if program == Program::For32Bits { Model::Max } else { model }
}

/// Returns the text of `-cpu help`, in QEMU's form.
pub(super) fn help(program: Program) -> String {
    let line = |name: &str, rest: &str| {
        let here = model(name, program).map_or(Model::Max, |(model, _)| model);
        format!("x86 {name:<20}  here: {here}{rest}")
    };
    let own = MODELS.iter().map(|(name, _)| line(name, ""));
    let later_ones =
        WITHOUT_AVX2.iter().chain(&WITH_AVX2).map(|name| line(name, ", with fewer features"));
    let models: Vec<_> = own.chain(later_ones).collect();
    let names = later(program, Model::X86_64_V3).features();
    let names: Vec<_> =
        names.iter_names().map(|(name, _)| name.to_ascii_lowercase().replace('_', ".")).collect();
    let (models, names) = (models.join("\n"), names.join(" "));
    format!("Available CPUs:\n{models}\n\nRecognized CPUID flags:\n  {names}\n")
}

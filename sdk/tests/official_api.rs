//! Compares this crate's traits, buffers and enums, as its sources declare them, with the committed list
//! of the official crate's (`official-api.txt`). Names of arguments and lifetimes do not matter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};
use syn::{FnArg, GenericArgument, Ident, Item, LitInt, PathArguments, ReturnType, Token, Type, UseTree, Visibility};

/// What one source file calls by another name, and what the types of that name are.
#[derive(Default)]
struct Aliases {
    renamed: BTreeMap<String, String>,
    types: BTreeMap<String, Type>,
}

/// `Option<std::sync::Arc<X<'a>>>` becomes `Option<Arc<X>>`.
struct Normalize<'a>(&'a Aliases);

impl VisitMut for Normalize<'_> {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        let alias = |ty: &Type| {
            let Type::Path(path) = ty else { return None };
            let last = path.path.segments.last()?;
            let target = self.0.types.get(&last.ident.to_string())?.clone();
            // The only generic alias here is a `Result` with one free type.
            let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Some(target) };
            let argument = arguments.args.first()?.to_token_stream().to_string();
            syn::parse_str(&target.to_token_stream().to_string().replace("()", &argument)).ok()
        };
        while let Some(target) = alias(ty) {
            *ty = target;
        }
        visit_mut::visit_type_mut(self, ty);
    }

    fn visit_type_reference_mut(&mut self, reference: &mut syn::TypeReference) {
        reference.lifetime = None;
        visit_mut::visit_type_reference_mut(self, reference);
    }

    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        let mut last = path.segments.last().cloned().expect("a path has segments");
        if let Some(name) = self.0.renamed.get(&last.ident.to_string()) {
            last.ident = Ident::new(name, last.ident.span());
        }
        if let PathArguments::AngleBracketed(arguments) = &mut last.arguments {
            let kept = arguments.args.iter().filter(|a| !matches!(a, GenericArgument::Lifetime(_))).cloned();
            arguments.args = kept.collect();
            if arguments.args.is_empty() {
                last.arguments = PathArguments::None;
            }
        }
        *path = last.into();
        visit_mut::visit_path_mut(self, path);
    }

    fn visit_type_param_bound_mut(&mut self, bound: &mut syn::TypeParamBound) {
        visit_mut::visit_type_param_bound_mut(self, bound);
    }
}

fn tidy(tokens: impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [(" <", "<"), ("< ", "<"), (" >", ">"), (" ,", ","), ("& ", "&"), ("[ ", "["), (" ]", "]")] {
        text = text.replace(from, to);
    }
    text.replace("( ", "(").replace(" )", ")").replace(" ;", ";").replace(" (", "(").replace(" + 'static", "")
}

fn signature(signature: &syn::Signature, aliases: &Aliases) -> String {
    let mut inputs = Vec::new();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                let borrow = if receiver.reference.is_some() { "&" } else { "" };
                let mutable = if receiver.mutability.is_some() && !borrow.is_empty() { "mut " } else { "" };
                inputs.push(format!("{borrow}{mutable}self"));
            }
            FnArg::Typed(argument) => inputs.push(normal(&argument.ty, aliases)),
        }
    }
    let output = match &signature.output {
        ReturnType::Default => String::new(),
        ReturnType::Type(_, ty) => format!(" -> {}", normal(ty, aliases)),
    };
    format!("{}({}){output}", signature.ident, inputs.join(", "))
}

fn normal(ty: &Type, aliases: &Aliases) -> String {
    let mut ty = ty.clone();
    Normalize(aliases).visit_type_mut(&mut ty);
    tidy(ty)
}

/// The body of this crate's `enums! { name { Variant = 0, … } … }`.
struct Enums(Vec<(String, Vec<String>)>);

impl syn::parse::Parse for Enums {
    fn parse(input: syn::parse::ParseStream<'_>) -> syn::Result<Self> {
        let mut enums = Vec::new();
        while !input.is_empty() {
            input.call(syn::Attribute::parse_outer)?;
            let name: Ident = input.parse()?;
            let body;
            syn::braced!(body in input);
            let mut variants = Vec::new();
            while !body.is_empty() {
                let variant: Ident = body.parse()?;
                body.parse::<Token![=]>()?;
                variants.push(format!("{variant} = {}", body.parse::<LitInt>()?));
                if !body.is_empty() {
                    body.parse::<Token![,]>()?;
                }
            }
            enums.push((name.to_string(), variants));
        }
        Ok(Self(enums))
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // What is there has nothing to do with the ABI, and goes elsewhere in a swap.
            if !path.ends_with("extra") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn renames(tree: &UseTree, renamed: &mut BTreeMap<String, String>) {
    match tree {
        UseTree::Path(path) => renames(&path.tree, renamed),
        UseTree::Group(group) => group.items.iter().for_each(|item| renames(item, renamed)),
        UseTree::Rename(rename) => {
            renamed.insert(rename.rename.to_string(), rename.ident.to_string());
        }
        UseTree::Name(_) | UseTree::Glob(_) => {}
    }
}

/// Every public method and enum variant that this crate declares, one a line.
fn ours() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    sources(&root.join("src"), &mut paths);
    let files: Vec<syn::File> =
        paths.iter().map(|path| syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap()).collect();
    let mut types = BTreeMap::new();
    for item in files.iter().flat_map(|file| &file.items) {
        if let Item::Type(alias) = item
            && ["HttpPerRouteConfig", "MetricResult"].contains(&alias.ident.to_string().as_str())
        {
            let text = alias.ty.to_token_stream().to_string();
            let text =
                text.replace("< T ,", "< () ,").replace("MetricsResult", "envoy_dynamic_module_type_metrics_result");
            types.insert(alias.ident.to_string(), syn::parse_str(&text).unwrap());
        }
    }
    let mut lines = BTreeSet::new();
    for file in &files {
        let mut aliases = Aliases { types: types.clone(), ..Aliases::default() };
        for item in &file.items {
            if let Item::Use(item) = item {
                renames(&item.tree, &mut aliases.renamed);
            }
        }
        for item in &file.items {
            match item {
                Item::Trait(item) if matches!(item.vis, Visibility::Public(_)) => {
                    for member in &item.items {
                        let syn::TraitItem::Fn(method) = member else { panic!("{}: no method", item.ident) };
                        lines.insert(format!("{}::{}", item.ident, signature(&method.sig, &aliases)));
                    }
                }
                Item::Impl(item) if item.trait_.is_none() => {
                    let owner = normal(&item.self_ty, &aliases);
                    for member in &item.items {
                        if let syn::ImplItem::Fn(method) = member
                            && matches!(method.vis, Visibility::Public(_))
                        {
                            lines.insert(format!("{owner}::{}", signature(&method.sig, &aliases)));
                        }
                    }
                }
                Item::Macro(item) if item.mac.path.is_ident("enums") => {
                    let Enums(enums) = item.mac.parse_body().unwrap();
                    for (name, variants) in enums {
                        lines.extend(variants.into_iter().map(|variant| format!("{name}::{variant}")));
                    }
                }
                _ => {}
            }
        }
    }
    lines
}

/// The committed list: the official crate's lines, with this crate's in place of the few that differ on
/// purpose (`official => ours`).
fn official() -> BTreeSet<String> {
    let list = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("official-api.txt")).unwrap();
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(" => ").map_or(line, |(_, ours)| ours).to_owned()).collect()
}

#[test]
fn what_is_declared_here_is_what_the_official_crate_declares() {
    let (ours, official) = (ours(), official());
    assert!(ours.len() > 100, "the sources were not understood: {ours:#?}");
    let only_ours: Vec<_> = ours.difference(&official).collect();
    let only_listed: Vec<_> = official.difference(&ours).collect();
    assert!(
        only_ours.is_empty() && only_listed.is_empty(),
        "a swap to the official crate would break on these.\nHere: {only_ours:#?}\nIn official-api.txt: {only_listed:#?}\n\
         Look the method up in the official sources before you add it to the list; what they do not have belongs in extra.rs."
    );
}

/// The schedulers' traits come from a macro; their one method is checked by the compiler.
#[test]
fn schedulers_have_the_official_method() {
    use envoy_proxy_dynamic_modules_rust_sdk as sdk;
    let _: fn(&dyn sdk::EnvoyHttpFilterScheduler, u64) = |scheduler, id| scheduler.commit(id);
    let _: fn(&dyn sdk::EnvoyNetworkFilterScheduler, u64) = |scheduler, id| scheduler.commit(id);
    let _: fn(&dyn sdk::EnvoyBootstrapExtensionConfigScheduler, u64) = |scheduler, id| scheduler.commit(id);
}

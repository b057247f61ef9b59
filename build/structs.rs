//! The ABI as its Rust sources declare it: constants, structs, handles, callbacks and functions in the order of the source,
//! and the defaults of every struct. From these come the `_INIT` macros, and the two tables with which Rust and a C compiler
//! compare what they make of the structs. A field is declared once, in Rust.

use quote::ToTokens;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use syn::{Expr, Item, Type};

/// What the header declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Constant,
    Struct,
    /// A struct that `include/nanomc/layout.h` declares, for device code too.
    LayoutStruct,
    /// A struct that C sees only by its name.
    Handle,
    /// A callback, or another name for a type.
    Alias,
    Function,
}

/// One source file.
pub struct Source {
    /// Its path from the root of the repository.
    pub path: String,
    /// What it declares, in order.
    pub items: Vec<(Kind, String)>,
    file: syn::File,
}

/// A struct and its fields, in order.
pub struct Struct {
    pub name: String,
    pub fields: Vec<(String, Type)>,
    /// The path that Rust code has for it.
    rust_path: String,
    default: Defaults,
}

/// Where the values of the `_INIT` macro come from.
enum Defaults {
    /// There is no such macro.
    None,
    /// Zeros but for `struct_size`: a struct that the library fills.
    Zeros,
    /// The function of the struct that returns them, and its body.
    Function { name: String, source: usize, body: syn::Block },
}

/// All of it.
pub struct Abi {
    pub sources: Vec<Source>,
    pub structs: BTreeMap<String, Struct>,
    aliases: BTreeMap<String, Type>,
}

/// The sources say something that cannot be said in C; where, and what.
pub type Result<T> = std::result::Result<T, String>;

impl Abi {
    /// Reads the given files: paths from the root, and texts.
    pub fn parse(files: &[(String, String)]) -> Result<Self> {
        let mut abi = Self { sources: Vec::new(), structs: BTreeMap::new(), aliases: BTreeMap::new() };
        for (path, text) in files {
            let file = syn::parse_file(text).map_err(|e| format!("{path}: {e}"))?;
            let mut items = Vec::new();
            for item in &file.items {
                if let Some((kind, name)) = declared(item) {
                    abi.keep(item, &name, kind, path);
                    items.push((kind, name));
                }
            }
            abi.sources.push(Source { path: path.clone(), items, file });
        }
        abi.find_defaults();
        Ok(abi)
    }

    fn keep(&mut self, item: &Item, name: &str, kind: Kind, path: &str) {
        if let Item::Type(alias) = item {
            self.aliases.insert(name.to_owned(), (*alias.ty).clone());
        }
        let Item::Struct(item) = item else { return };
        if kind == Kind::Handle {
            return;
        }
        let named = |f: &syn::Field| f.ident.as_ref().map(|n| (n.to_string(), f.ty.clone()));
        let fields: Vec<_> = item.fields.iter().filter_map(named).collect();
        let grows = fields.first().is_some_and(|(first, _)| first == "struct_size");
        let module =
            path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        self.structs.insert(
            name.to_owned(),
            Struct {
                name: name.to_owned(),
                fields,
                rust_path: format!("crate::{module}::{name}"),
                default: if grows { Defaults::Zeros } else { Defaults::None },
            },
        );
    }

    /// `fn defaults()` of the trait `Config`, or `fn default()` of `Default`; of both, the one that spells the struct out.
    fn find_defaults(&mut self) {
        for (at, source) in self.sources.iter().enumerate() {
            for item in &source.file.items {
                let Item::Impl(block) = item else { continue };
                let Some(of) = path_name(&block.self_ty).and_then(|name| self.structs.get_mut(&name)) else { continue };
                for function in &block.items {
                    let syn::ImplItem::Fn(function) = function else { continue };
                    let name = function.sig.ident.to_string();
                    let makes_one = name == "defaults" || name == "default";
                    let spelled_out =
                        matches!(function.block.stmts.last(), Some(syn::Stmt::Expr(Expr::Struct(_), None)));
                    if makes_one && (spelled_out || !matches!(of.default, Defaults::Function { .. })) {
                        of.default = Defaults::Function { name, source: at, body: function.block.clone() };
                    }
                }
            }
        }
    }

    /// The `_INIT` macro of a struct, if it has one.
    pub fn initialiser(&self, of: &Struct) -> Result<Option<String>> {
        if matches!(of.default, Defaults::None) {
            return Ok(None);
        }
        let mut text = format!("#define {} \\\n  {{ \\\n", macro_name(&of.name));
        let values = self.values(of)?;
        for (at, ((field, _), value)) in of.fields.iter().zip(values).enumerate() {
            let comma = if at + 1 == of.fields.len() { "" } else { "," };
            let _ = writeln!(text, "    /* {field} */ {value}{comma} \\");
        }
        text.push_str("  }");
        Ok(Some(text))
    }

    /// The default of every field, in C.
    fn values(&self, of: &Struct) -> Result<Vec<String>> {
        let mut values = match &of.default {
            Defaults::None | Defaults::Zeros => {
                of.fields.iter().map(|(_, ty)| self.zero(ty)).collect::<Result<Vec<_>>>()
            }
            Defaults::Function { source, body, .. } => {
                let mut scope = Scope { abi: self, source: *source, locals: BTreeMap::new() };
                scope.body(of, body)
            }
        }
        .map_err(|e| format!("the default of {}: {e}", of.name))?;
        if let (Some((first, _)), Some(value)) = (of.fields.first(), values.first_mut())
            && first == "struct_size"
        {
            *value = format!("(uint32_t)sizeof({})", of.name);
        }
        Ok(values)
    }

    /// What zero bytes are in C.
    fn zero(&self, ty: &Type) -> Result<String> {
        match ty {
            Type::Ptr(_) => return Ok("NULL".to_owned()),
            Type::Array(array) => return repeat(&self.zero(&array.elem)?, &array.len),
            _ => {}
        }
        let name = path_name(ty).ok_or_else(|| format!("no zero is known for the type `{}`", text_of(ty)))?;
        if let Some(of) = self.structs.get(&name) {
            let zeros = of.fields.iter().map(|(_, ty)| self.zero(ty)).collect::<Result<Vec<_>>>()?;
            return Ok(format!("{{{}}}", zeros.join(", ")));
        }
        if let Some(alias) = self.aliases.get(&name) {
            return self.zero(alias);
        }
        Ok(if name == "Option" { "NULL" } else { "0" }.to_owned())
    }

    /// For `src/ffi/abi.rs`: every struct with its fields, and the value that each `_INIT` macro should have.
    pub fn rust_table(&self) -> String {
        let mut layout = String::new();
        let mut defaults = String::new();
        for of in self.in_order() {
            let fields: Vec<_> = of.fields.iter().map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(layout, "    {} as {} {{ {} }}", of.rust_path, of.name, fields.join(", "));
            let value = match &of.default {
                Defaults::None => continue,
                Defaults::Zeros => format!("zeros::<{}>()", of.rust_path),
                Defaults::Function { name, .. } => format!("<{}>::{name}()", of.rust_path),
            };
            let _ = writeln!(defaults, "    {} = {value};", macro_name(&of.name));
        }
        format!("structs! {{\n{layout}}}\ninitialisers! {{\n{defaults}}}\n")
    }

    /// For `ctest/abi/layout.c`: the same for a C compiler.
    pub fn c_table(&self) -> String {
        let mut text =
            "/* Generated from the Rust sources (build/structs.rs, `make bless`); do not edit. */\n".to_owned();
        for of in self.in_order() {
            let _ = writeln!(text, "STRUCT({})", of.name);
            for (field, _) in &of.fields {
                let _ = writeln!(text, "FIELD({}, {field})", of.name);
            }
        }
        for of in self.in_order().filter(|of| !matches!(of.default, Defaults::None)) {
            let _ = writeln!(text, "INIT({}, {})", of.name, macro_name(&of.name));
        }
        text
    }

    fn in_order(&self) -> impl Iterator<Item = &Struct> {
        self.sources.iter().flat_map(|s| &s.items).filter_map(|(_, name)| self.structs.get(name))
    }
}

/// Where names of an expression are looked up.
struct Scope<'a> {
    abi: &'a Abi,
    source: usize,
    locals: BTreeMap<String, &'a Expr>,
}

impl<'a> Scope<'a> {
    /// The fields of a function that ends in `Self { .. }`, in the order in which they are declared.
    fn body(&mut self, of: &Struct, body: &'a syn::Block) -> Result<Vec<String>> {
        let (last, before) = body.stmts.split_last().ok_or("the function is empty")?;
        for statement in before {
            let syn::Stmt::Local(local) = statement else {
                return Err(format!("only `let` may stand before the struct, not `{}`", text_of(statement)));
            };
            let (syn::Pat::Ident(name), Some(value)) = (&local.pat, &local.init) else {
                return Err(format!("`{}` cannot be followed", text_of(local)));
            };
            self.locals.insert(name.ident.to_string(), &value.expr);
        }
        match last {
            syn::Stmt::Expr(Expr::Struct(literal), None) => self.literal(of, literal),
            other => {
                Err(format!("the function must end in a struct whose fields are spelled out, not `{}`", text_of(other)))
            }
        }
    }

    fn literal(&self, of: &Struct, literal: &'a syn::ExprStruct) -> Result<Vec<String>> {
        if literal.rest.is_some() {
            return Err("`..` hides fields; spell them out".to_owned());
        }
        let mut given = BTreeMap::new();
        for field in &literal.fields {
            given.insert(field.member.to_token_stream().to_string(), &field.expr);
        }
        let value = |(field, ty): &(String, Type)| {
            if field == "struct_size" {
                return Ok(format!("(uint32_t)sizeof({})", of.name));
            }
            let expr = given.get(field).ok_or_else(|| format!("field {field} is missing"))?;
            self.expression(expr, ty).map_err(|e| format!("field {field}: {e}"))
        };
        of.fields.iter().map(value).collect()
    }

    fn expression(&self, expr: &'a Expr, ty: &Type) -> Result<String> {
        let unknown = || format!("`{}` cannot be translated to C; see build/structs.rs for what can", text_of(expr));
        match expr {
            Expr::Lit(lit) => match &lit.lit {
                syn::Lit::Int(number) => Ok(number.base10_digits().to_owned()),
                syn::Lit::Float(number) => Ok(number.base10_digits().to_owned()),
                _ => Err(unknown()),
            },
            Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => {
                Ok(format!("-{}", self.expression(expr, ty)?))
            }
            Expr::Paren(inner) => self.expression(&inner.expr, ty),
            Expr::Binary(syn::ExprBinary { left, op: syn::BinOp::BitOr(_), right, .. }) => {
                Ok(format!("({} | {})", self.expression(left, ty)?, self.expression(right, ty)?))
            }
            Expr::Repeat(array) => match ty {
                Type::Array(of) => repeat(&self.expression(&array.expr, &of.elem)?, &array.len),
                _ => Err(unknown()),
            },
            Expr::Array(array) => match ty {
                Type::Array(of) => {
                    let values =
                        array.elems.iter().map(|e| self.expression(e, &of.elem)).collect::<Result<Vec<_>>>()?;
                    Ok(format!("{{{}}}", values.join(", ")))
                }
                _ => Err(unknown()),
            },
            Expr::Struct(literal) => {
                let of = path_name(ty).and_then(|name| self.abi.structs.get(&name)).ok_or_else(unknown)?;
                Ok(format!("{{{}}}", self.literal(of, literal)?.join(", ")))
            }
            Expr::Call(call) if call.args.is_empty() => {
                let Expr::Path(function) = call.func.as_ref() else { return Err(unknown()) };
                let names: Vec<_> = function.path.segments.iter().map(|s| s.ident.to_string()).collect();
                match names.last().map(String::as_str) {
                    Some("null" | "null_mut") => Ok("NULL".to_owned()),
                    Some("default" | "defaults") if names.len() == 2 => match self.abi.structs.get(&names[0]) {
                        Some(of) => Ok(format!("{{{}}}", self.abi.values(of)?.join(", "))),
                        None if names[0] == "Default" => self.abi.zero(ty),
                        None => Err(unknown()),
                    },
                    _ => Err(unknown()),
                }
            }
            Expr::Path(path) => self.name(&path.path, ty).unwrap_or_else(|| Err(unknown())),
            _ => Err(unknown()),
        }
    }

    /// A constant or a variable.
    fn name(&self, path: &syn::Path, ty: &Type) -> Option<Result<String>> {
        let names: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        let last = names.last()?;
        if let [of, which @ ("MAX" | "MIN")] = names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            let (sign, bits) = of.split_at_checked(1)?;
            bits.parse::<u32>().ok()?;
            return match (sign, which) {
                ("u", "MAX") => Some(Ok(format!("UINT{bits}_MAX"))),
                ("u", _) => Some(Ok("0".to_owned())),
                ("i", _) => Some(Ok(format!("INT{bits}_{which}"))),
                _ => None,
            };
        }
        if last == "None" {
            return Some(Ok("NULL".to_owned()));
        }
        if last.starts_with("NMC_") {
            return Some(Ok(last.clone()));
        }
        if let Some(local) = self.locals.get(last) {
            return Some(self.expression(local, ty));
        }
        // A constant of the file that C does not see: its value.
        self.abi.sources[self.source].file.items.iter().find_map(|item| match item {
            Item::Const(constant) if constant.ident == last => Some(self.expression(&constant.expr, ty)),
            _ => None,
        })
    }
}

/// What an item declares to C, if anything.
fn declared(item: &Item) -> Option<(Kind, String)> {
    let (kind, name, visibility) = match item {
        Item::Const(i) => (Kind::Constant, &i.ident, &i.vis),
        Item::Type(i) => (Kind::Alias, &i.ident, &i.vis),
        Item::Struct(i) => {
            let repr_c = i.attrs.iter().any(|a| a.path().is_ident("repr"));
            let ignored = i.attrs.iter().any(|a| text_of(a).contains("cbindgen:ignore"));
            let kind = match (repr_c, ignored) {
                (_, true) => Kind::LayoutStruct,
                (true, false) => Kind::Struct,
                (false, false) => Kind::Handle,
            };
            (kind, &i.ident, &i.vis)
        }
        Item::Fn(i) if i.sig.abi.is_some() => (Kind::Function, &i.sig.ident, &i.vis),
        _ => return None,
    };
    let name = name.to_string();
    let is_c = name.starts_with("nmc_") || name.starts_with("NMC_");
    (is_c && matches!(visibility, syn::Visibility::Public(_))).then_some((kind, name))
}

/// `nmc_world_config_t` has `NMC_WORLD_CONFIG_INIT`.
fn macro_name(of: &str) -> String {
    format!("{}_INIT", of.trim_end_matches("_t").to_uppercase())
}

fn repeat(value: &str, times: &Expr) -> Result<String> {
    let Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(times), .. }) = times else {
        return Err(format!("the length `{}` is not a number", text_of(times)));
    };
    let times: usize = times.base10_parse().map_err(|e| e.to_string())?;
    Ok(format!("{{{}}}", vec![value; times].join(", ")))
}

/// The last name of a type such as `super::nmc_slice_t`.
fn path_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
        _ => None,
    }
}

fn text_of(tokens: &impl ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

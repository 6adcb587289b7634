//! How large every value of a template may become, by its syntax tree. Owns what each statement and expression does
//! to sizes; the arithmetic is `size`'s, and what loops add up to is `turns`'s.
//!
//! Macros are followed into where they are called, so none may call itself. What nests values (lists, slices, lazy
//! filters) is counted, since the engine walks and frees values recursively.

mod expressions;

use std::collections::{BTreeMap, HashMap};

use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Stmt};

use super::size::{INPUT, Kind, Part, Size, TURNS};
use super::turns::{self, Carried};

/// Bytes of any value: copying it takes a fifth of a millisecond.
const MAX_BYTES: u64 = 2 << 20;
/// Bytes of a value of which a step reads each letter.
const MAX_READ: u64 = 128 << 10;
/// Bytes in memory for each byte of a value that is not text: a list of letters.
const LIST_BYTES: u64 = 24;
/// Bytes of all variables together.
const MAX_ALL_BYTES: u64 = 128 << 20;
/// Lists within lists and lazy values over lazy values that a template may make.
const MAX_DEPTH: usize = 16;
/// Loops within one another: messages, their parts, the parts' fields, and a macro over each.
const MAX_LOOPS: usize = 6;
/// Macros that call each other: each call takes some of the thread's stack.
const MAX_CALLS: usize = 8;
/// Statements and expressions that are looked at: a body of a loop three times, that of a macro at each call.
const MAX_VISITS: usize = 200_000;
/// What a macro has written so far; no name of a template has a space.
const OUTPUT: &str = "its output";

type Names = BTreeMap<String, Size>;

#[derive(Clone)]
struct Macro<'a> {
    declared: &'a ast::Macro<'a>,
    /// What it sees of variables outside.
    variables: Names,
}

#[derive(Default)]
pub(super) struct Proof<'a> {
    /// What was set, attributes of namespaces as `name.attribute`; what is absent is an input.
    variables: Names,
    /// All that was set outside of loops and macros, the largest of each.
    globals: Names,
    namespaces: Vec<&'a str>,
    macros: HashMap<&'a str, Macro<'a>>,
    /// Macros that are being followed.
    calls: Vec<&'a str>,
    /// What the loops run over.
    loops: Vec<Size>,
    /// Variables that are mappings where the statement is.
    mappings: Vec<&'a str>,
    /// The loops over the keys of such a variable: its name, the key's, and the loop's depth.
    keys: Vec<(&'a str, &'a str, usize)>,
    /// Names that were set since a loop began.
    written: Vec<String>,
    /// The variables at each way out of the body of a loop before its end.
    jumps: Vec<Names>,
    /// Whether the sizes of some variables are not known yet.
    is_open: bool,
    is_nested: bool,
    numbers: usize,
    visits: usize,
    /// The most that each variable of each macro has.
    most: HashMap<(Option<&'a str>, String), u64>,
    all_bytes: u64,
}

impl<'a> Proof<'a> {
    /// `None`: there may be no bound.
    pub(super) fn template(&mut self, template: &'a Stmt<'a>) -> Option<()> {
        match template {
            Stmt::Template(template) => self.statements(&template.children),
            _ => None,
        }
    }

    fn statements(&mut self, statements: &'a [Stmt<'a>]) -> Option<()> {
        statements.iter().try_for_each(|one| self.statement(one))
    }

    fn within(&mut self, statements: &'a [Stmt<'a>]) -> Option<()> {
        let was_nested = std::mem::replace(&mut self.is_nested, true);
        self.statements(statements)?;
        self.is_nested = was_nested;
        Some(())
    }

    fn statement(&mut self, statement: &'a Stmt<'a>) -> Option<()> {
        self.visit()?;
        match statement {
            Stmt::EmitExpr(emit) => {
                let size = self.value(&emit.expr)?;
                self.write(&size)
            }
            Stmt::EmitRaw(emit) => self.write(&Size::text(emit.raw.len() as u64)),
            Stmt::IfCond(cond) => {
                self.value(&cond.expr)?;
                let before = self.variables.clone();
                let mappings = self.mappings.clone();
                self.mappings.extend(proven_mapping(&cond.expr));
                self.within(&cond.true_body)?;
                let still = std::mem::replace(&mut self.mappings, mappings);
                self.mappings.retain(|name| still.contains(name));
                let after = std::mem::replace(&mut self.variables, before);
                self.within(&cond.false_body)?;
                self.join(&after);
                Some(())
            }
            Stmt::ForLoop(each) => self.each(each),
            Stmt::Continue(_) | Stmt::Break(_) => {
                self.jumps.push(self.variables.clone());
                Some(())
            }
            Stmt::Set(set) => self.set(&set.target, &set.expr),
            Stmt::SetBlock(set) if set.filter.is_none() => {
                let size = self.captured(|proof| proof.within(&set.body))?;
                self.assign(&set.target, &size)
            }
            // What it sets is not unset behind it here, so a name may count as larger than it is.
            Stmt::WithBlock(with) => {
                let before = self.variables.clone();
                for (target, value) in &with.assignments {
                    self.set(target, value)?;
                }
                self.within(&with.body)?;
                self.join(&before);
                Some(())
            }
            Stmt::Macro(declared) => self.declare(declared),
            _ => None,
        }
    }

    fn declare(&mut self, declared: &'a ast::Macro<'a>) -> Option<()> {
        let is_taken = self.namespaces.contains(&declared.name)
            || self.variables.contains_key(declared.name)
            || is_reserved(declared.name);
        if self.is_nested || !self.calls.is_empty() || is_taken {
            return None;
        }
        let variables = self.variables.clone();
        let one = Macro {
            declared,
            variables,
        };
        self.macros
            .insert(declared.name, one)
            .is_none()
            .then_some(())
    }

    /// What a macro writes.
    fn follow(&mut self, name: &'a str, arguments: &'a [CallArg<'a>]) -> Option<Size> {
        if self.calls.contains(&name) || self.calls.len() >= MAX_CALLS {
            return None;
        }
        let mut given = Vec::new();
        for argument in arguments {
            given.push(match argument {
                CallArg::Pos(value) => (None, self.value(value)?),
                CallArg::Kwarg(name, value) => (Some(*name), self.value(value)?),
                _ => return None,
            });
        }
        let Macro {
            declared,
            variables,
        } = self.macros.get(name)?.clone();
        self.calls.push(name);
        let caller = self.variables.clone();
        self.join(&variables);
        // It sees what was set at the template's top, whatever the caller has under the same name.
        for (name, size) in &self.globals {
            let known = self.variables.entry(name.clone());
            let known = known.or_insert_with(|| size.clone());
            *known = known.or(size);
        }
        let mappings = std::mem::take(&mut self.mappings);
        let keys = std::mem::take(&mut self.keys);
        let defaults = declared.args.len().checked_sub(declared.defaults.len())?;
        for (place, target) in declared.args.iter().enumerate() {
            let Expr::Var(parameter) = target else {
                return None;
            };
            let named = given.iter().find(|(name, _)| *name == Some(parameter.id));
            let at = || given.get(place).filter(|(name, _)| name.is_none());
            let size = match named.or_else(at) {
                Some((_, size)) => size.clone(),
                None => match place.checked_sub(defaults) {
                    Some(default) => self.value(declared.defaults.get(default)?)?,
                    None => Size::none(),
                },
            };
            self.assign(target, &size)?;
        }
        let written = self.captured(|proof| proof.within(&declared.body))?;
        // Namespaces are the same inside and outside; other names are not.
        let inside = std::mem::replace(&mut self.variables, caller);
        let shared = inside.into_iter().filter(|(name, _)| name.contains('.'));
        self.join(&shared.collect());
        self.calls.pop();
        (self.mappings, self.keys) = (mappings, keys);
        Some(written)
    }

    /// What `write` writes to a text.
    fn captured(&mut self, write: impl FnOnce(&mut Self) -> Option<()>) -> Option<Size> {
        let outer = self.variables.insert(OUTPUT.to_owned(), Size::none());
        write(self)?;
        match outer {
            Some(outer) => self.variables.insert(OUTPUT.to_owned(), outer),
            None => self.variables.remove(OUTPUT),
        }
    }

    /// Writes to the text that is being made; what a template writes as a whole is bounded as it is rendered.
    fn write(&mut self, size: &Size) -> Option<()> {
        match self.variables.get(OUTPUT) {
            Some(written) => self.grow(OUTPUT.to_owned(), written.plus(&size.printed())),
            None => Some(()),
        }
    }

    fn each(&mut self, each: &'a ast::ForLoop<'a>) -> Option<()> {
        if each.recursive || self.loops.len() >= MAX_LOOPS {
            return None;
        }
        let counts = matches!(&each.iter, Expr::Call(call) if is_named(&call.expr, "range"));
        let iter = match &each.iter {
            Expr::Call(call) if counts => {
                self.arguments(&call.args)?;
                Size::number()
            }
            iter => self.value(iter)?,
        };
        self.loops.push(iter.clone());
        let depth = self.loops.len();
        let keys = self.keys.clone();
        let mut item = match counts {
            true => Size::number(),
            false => Size::part(Part::Item(depth)),
        };
        item.depth = iter.depth;
        item.kind = item.kind.max(iter.kind);
        let before = self.variables.clone();
        let jumps = std::mem::take(&mut self.jumps);
        let written = std::mem::take(&mut self.written);

        // Which names a turn sets, then what it makes of them, then whether every value is bounded with that.
        let was_open = std::mem::replace(&mut self.is_open, true);
        self.turn(each, &item)?;
        let mut names = std::mem::take(&mut self.written);
        names.sort_unstable();
        names.dedup();
        names.retain(|name| name != OUTPUT || before.contains_key(OUTPUT));
        let known =
            |names: &Names, name: &str| names.get(name).cloned().unwrap_or_else(|| unset(name));
        let once = std::mem::replace(&mut self.variables, before.clone());
        let deepest = names.iter().map(|name| known(&before, name).depth);
        let deepest = deepest.max().unwrap_or(0);
        let first = self.numbers;
        self.numbers += names.len();
        for (place, name) in names.iter().enumerate() {
            let mut size = Size::part(Part::Before(first + place));
            size.depth = deepest;
            size.kind = known(&before, name).kind.max(known(&once, name).kind);
            if size.kind == Kind::Number {
                size = Size::number();
            }
            self.variables.insert(name.clone(), size);
        }
        let assumed = self.variables.clone();
        self.turn(each, &item)?;
        let mut carried = BTreeMap::new();
        for (place, name) in names.iter().enumerate() {
            let (before, after) = (known(&before, name), known(&self.variables, name));
            if after.kind > known(&assumed, name).kind {
                return None;
            }
            carried.insert(first + place, Carried { before, after });
        }
        let closed = turns::close(&carried, depth, &iter)?;
        self.variables = before.clone();
        for (place, name) in names.iter().enumerate() {
            let size = closed.get(&(first + place))?.clone();
            self.is_open = was_open;
            self.grow(name.clone(), size)?;
        }
        self.is_open = was_open;
        let after = self.variables.clone();
        if !was_open {
            self.turn(each, &item)?;
        }
        self.loops.pop();
        let still = std::mem::replace(&mut self.keys, keys);
        self.keys.retain(|key| still.contains(key));
        self.variables = before;
        self.within(&each.else_body)?;
        self.join(&after);
        self.jumps = jumps;
        self.written.extend(written);
        self.written.extend(names);
        Some(())
    }

    /// One turn of a loop.
    fn turn(&mut self, each: &'a ast::ForLoop<'a>, item: &Size) -> Option<()> {
        self.assign(&each.target, item)?;
        if let (Expr::Var(mapping), Expr::Var(key)) = (&each.iter, &each.target)
            && self.mappings.contains(&mapping.id)
        {
            self.keys.push((mapping.id, key.id, self.loops.len()));
        }
        if let Some(filter) = &each.filter_expr {
            self.value(filter)?;
        }
        self.within(&each.body)?;
        for variables in std::mem::take(&mut self.jumps) {
            self.join(&variables);
        }
        Some(())
    }

    fn set(&mut self, target: &'a Expr<'a>, value: &'a Expr<'a>) -> Option<()> {
        if let Expr::Call(call) = value
            && let Expr::Var(name) = target
            && is_named(&call.expr, "namespace")
        {
            if self.macros.contains_key(name.id) || is_reserved(name.id) {
                return None;
            }
            // What had that name was no namespace, and may have been put anywhere.
            if !self.namespaces.contains(&name.id) && self.variables.contains_key(name.id) {
                return None;
            }
            for argument in &call.args {
                let CallArg::Kwarg(attribute, value) = argument else {
                    return None;
                };
                let size = self.value(value)?;
                self.grow(format!("{}.{attribute}", name.id), size)?;
            }
            self.namespaces.push(name.id);
            return Some(());
        }
        let size = self.value(value)?;
        self.assign(target, &size)
    }

    fn assign(&mut self, target: &'a Expr<'a>, size: &Size) -> Option<()> {
        match target {
            Expr::Var(name) if self.is_fixed(name.id) => None,
            Expr::Var(name) => self.grow(name.id.to_owned(), size.clone()),
            Expr::GetAttr(attribute) => match &attribute.expr {
                Expr::Var(name) if self.namespaces.contains(&name.id) => {
                    self.grow(format!("{}.{}", name.id, attribute.name), size.clone())
                }
                _ => None,
            },
            Expr::List(list) => self.unpack(&list.items, size),
            Expr::Tuple(list) => self.unpack(&list.items, size),
            _ => None,
        }
    }

    fn unpack(&mut self, targets: &'a [Expr<'a>], size: &Size) -> Option<()> {
        targets.iter().try_for_each(|one| self.assign(one, size))
    }

    /// A name that no other value may get: of a namespace, a macro, or something that the engine has.
    fn is_fixed(&self, name: &str) -> bool {
        self.namespaces.contains(&name) || self.macros.contains_key(name) || is_reserved(name)
    }

    fn grow(&mut self, name: String, size: Size) -> Option<()> {
        self.mappings.retain(|known| **known != name);
        self.keys
            .retain(|(mapping, key, _)| **mapping != name && **key != name);
        let fits = self.fits(&size, MAX_BYTES);
        if !self.is_open {
            let bytes = match size.kind {
                Kind::Any => self.most(&size).saturating_mul(LIST_BYTES),
                Kind::Given | Kind::Text | Kind::Number => self.most(&size),
            };
            let known = self.most.entry((self.calls.last().copied(), name.clone()));
            let known = known.or_default();
            self.all_bytes += bytes.saturating_sub(*known);
            *known = bytes.max(*known);
        }
        if self.loops.is_empty() && self.calls.is_empty() {
            let known = self.globals.entry(name.clone());
            let known = known.or_insert_with(|| size.clone());
            *known = known.or(&size);
        }
        self.written.push(name.clone());
        self.variables.insert(name, size);
        (fits && self.all_bytes <= MAX_ALL_BYTES).then_some(())
    }

    /// Takes the larger of what each name has here and what it had on another way.
    fn join(&mut self, other: &Names) {
        for (name, size) in &mut self.variables {
            let others = other.get(name).cloned().unwrap_or_else(|| unset(name));
            *size = size.or(&others);
        }
        for (name, size) in other {
            if !self.variables.contains_key(name) {
                let size = size.or(&unset(name));
                self.variables.insert(name.clone(), size);
            }
        }
    }

    fn fits(&self, size: &Size, bytes: u64) -> bool {
        size.depth <= MAX_DEPTH && (self.is_open || self.most(size) <= bytes)
    }

    fn most(&self, size: &Size) -> u64 {
        size.most(&|part| match part {
            Part::Input => INPUT,
            Part::Turns(_) => TURNS,
            Part::Item(depth) => match depth.checked_sub(1).and_then(|depth| self.loops.get(depth))
            {
                Some(iter) => self.most(iter),
                None => u64::MAX,
            },
            Part::Before(_) => u64::MAX,
        })
    }

    fn visit(&mut self) -> Option<()> {
        self.visits += 1;
        (self.visits <= MAX_VISITS).then_some(())
    }
}

/// What a name is that was not set: an input, or an attribute that a namespace lacks.
fn unset(name: &str) -> Size {
    match name.contains('.') || name == OUTPUT {
        true => Size::none(),
        false => Size::part(Part::Input),
    }
}

/// Names that the engine gives a meaning.
fn is_reserved(name: &str) -> bool {
    matches!(
        name,
        "loop" | "self" | "super" | "caller" | "varargs" | "kwargs"
    ) || is_function(name)
}

fn is_function(name: &str) -> bool {
    matches!(
        name,
        "namespace" | "range" | "raise_exception" | "strftime_now"
    )
}

/// The variable of which a condition says that it is a mapping.
fn proven_mapping<'a>(condition: &Expr<'a>) -> Option<&'a str> {
    match condition {
        Expr::Test(test) if test.name == "mapping" => match &test.expr {
            Expr::Var(name) => Some(name.id),
            _ => None,
        },
        Expr::BinOp(both) if matches!(both.op, BinOpKind::ScAnd) => {
            proven_mapping(&both.left).or_else(|| proven_mapping(&both.right))
        }
        _ => None,
    }
}

fn is_named(expression: &Expr<'_>, name: &str) -> bool {
    matches!(expression, Expr::Var(variable) if variable.id == name)
}

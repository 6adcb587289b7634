//! How large the value of an expression may become: operators, functions, methods and filters. Owns which of them are
//! known not to multiply what they get.

use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr};

use super::super::size::{Kind, PRINTED, Part, Size};
use super::{MAX_BYTES, MAX_READ, Proof, is_function, unset};

impl<'a> Proof<'a> {
    pub(super) fn value(&mut self, expression: &'a Expr<'a>) -> Option<Size> {
        self.visit()?;
        let size = self.of(expression)?;
        self.fits(&size, MAX_BYTES).then_some(size)
    }

    /// A truth, a number or a short text of the engine, whatever the parts are.
    pub(super) fn small(&mut self, parts: impl IntoIterator<Item = &'a Expr<'a>>) -> Option<Size> {
        for part in parts {
            self.value(part)?;
        }
        Some(Size::number())
    }

    fn of(&mut self, expression: &'a Expr<'a>) -> Option<Size> {
        match expression {
            Expr::Const(one) if one.value.is_number() => Some(Size::number()),
            Expr::Const(one) => Some(Size::text(one.value.to_string().len() as u64)),
            // A namespace itself could be put into itself; a loop has the items before and behind.
            Expr::Var(name) if is_function(name.id) => Some(Size::text(64)),
            Expr::Var(name) if self.is_fixed(name.id) => None,
            Expr::Var(name) => Some(self.named(name.id)),
            Expr::GetAttr(get) => match &get.expr {
                Expr::Var(name) if self.namespaces.contains(&name.id) => {
                    Some(self.named(&format!("{}.{}", name.id, get.name)))
                }
                Expr::Var(name) if name.id == "loop" => self.of_loop(get.name),
                base => self.value(base),
            },
            Expr::GetItem(get) => {
                self.value(&get.subscript_expr)?;
                let base = self.value(&get.expr)?;
                Some(self.of_key(get).unwrap_or(base))
            }
            Expr::Slice(slice) => {
                let bounds = [&slice.start, &slice.stop, &slice.step];
                self.small(bounds.into_iter().flatten())?;
                let base = self.value(&slice.expr)?;
                deeper(base)
            }
            Expr::UnaryOp(operation) => self.small([&operation.expr]),
            Expr::Compare(compare) => {
                self.small(compare.ops.iter().map(|one| &one.expr))?;
                self.small([&compare.expr])
            }
            Expr::Test(test) => {
                self.arguments(&test.args)?;
                self.small([&test.expr])
            }
            Expr::BinOp(operation) => self.operation(operation),
            Expr::IfExpr(choice) => {
                self.value(&choice.test_expr)?;
                let chosen = self.value(&choice.true_expr)?;
                match &choice.false_expr {
                    Some(other) => Some(chosen.or(&self.value(other)?)),
                    None => Some(chosen),
                }
            }
            Expr::Filter(filter) => self.filter(filter),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.nested(&list.items),
            Expr::Tuple(list) => self.nested(&list.items),
            Expr::Map(map) => {
                let keys = self.nested(&map.keys)?;
                Some(keys.plus(&self.nested(&map.values)?))
            }
        }
    }

    pub(super) fn named(&self, name: &str) -> Size {
        self.variables
            .get(name)
            .cloned()
            .unwrap_or_else(|| unset(name))
    }

    fn of_loop(&self, attribute: &str) -> Option<Size> {
        match attribute {
            "index" | "index0" | "revindex" | "revindex0" | "first" | "last" | "length"
            | "depth" | "depth0" => Some(Size::number()),
            "previtem" | "nextitem" => self.loops.last().cloned(),
            _ => None,
        }
    }

    /// The value of a key in a loop over a mapping's keys: with the other turns' values no larger than the mapping.
    fn of_key(&self, get: &ast::GetItem<'a>) -> Option<Size> {
        let (Expr::Var(of), Expr::Var(by)) = (&get.expr, &get.subscript_expr) else {
            return None;
        };
        let mut keys = self.keys.iter();
        let (_, _, depth) = keys.find(|(mapping, key, _)| (*mapping, *key) == (of.id, by.id))?;
        let mut item = Size::part(Part::Item(*depth));
        let mapping = self.named(of.id);
        (item.depth, item.kind) = (mapping.depth, item.kind.max(mapping.kind));
        Some(item)
    }

    fn operation(&mut self, operation: &'a ast::BinOp<'a>) -> Option<Size> {
        let (left, right) = (self.value(&operation.left)?, self.value(&operation.right)?);
        match operation.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => Some(left.or(&right)),
            BinOpKind::Add => Some(left.plus(&right)),
            BinOpKind::Concat => Some(left.printed().plus(&right.printed())),
            // A text times a number.
            BinOpKind::Mul | BinOpKind::Pow => None,
            _ => Some(Size::number()),
        }
    }

    /// A list of values. One that was there before a turn would be nested once more with each.
    fn nested(&mut self, parts: &'a [Expr<'a>]) -> Option<Size> {
        let mut all = Size::text(8);
        for part in parts {
            let part = self.value(part)?;
            if part.is_carried() {
                return None;
            }
            all = all.plus(&part);
        }
        all.depth += 1;
        all.kind = Kind::Any;
        Some(all)
    }

    /// The largest of arguments.
    pub(super) fn arguments(&mut self, arguments: &'a [CallArg<'a>]) -> Option<Size> {
        let mut largest = Size::none();
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => {
                    largest = largest.or(&self.value(value)?);
                }
                _ => return None,
            }
        }
        Some(largest)
    }

    fn call(&mut self, call: &'a ast::Call<'a>) -> Option<Size> {
        if let Expr::Var(function) = &call.expr
            && self.macros.contains_key(function.id)
        {
            return self.follow(function.id, &call.args);
        }
        let arguments = self.arguments(&call.args)?;
        match &call.expr {
            Expr::Var(function) => match function.id {
                "raise_exception" => Some(arguments),
                // A format of a few letters; each may become a long name.
                "strftime_now" if arguments.is_known() => Some(arguments.times(32)),
                _ => None,
            },
            Expr::GetAttr(method) => {
                let base = self.value(&method.expr)?;
                match method.name {
                    "startswith" | "endswith" | "isdigit" | "find" => Some(Size::number()),
                    // Methods of texts alone.
                    "strip" | "lstrip" | "rstrip" | "removeprefix" | "removesuffix" => {
                        Some(text(base))
                    }
                    "upper" | "lower" | "title" | "capitalize" => self.letters(&base),
                    "split" | "rsplit" | "partition" | "rpartition" | "splitlines" => {
                        let mut list = base;
                        list.depth = 1;
                        list.kind = Kind::Any;
                        self.fits(&list, MAX_READ).then_some(list)
                    }
                    "items" | "keys" | "values" => deeper(base),
                    "get" => Some(base.or(&arguments)),
                    "replace" => self.replaced(&base, &call.args),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// What a filter makes of a value; only filters that are known not to multiply it.
    fn filter(&mut self, filter: &'a ast::Filter<'a>) -> Option<Size> {
        let arguments = self.arguments(&filter.args)?;
        let base = self.value(filter.expr.as_ref()?)?;
        match filter.name {
            "trim" | "string" | "safe" => Some(base.printed()),
            "upper" | "lower" | "title" | "capitalize" => self.letters(&base.printed()),
            "first" | "last" | "list" | "unique" | "sort" | "min" | "max" => Some(base),
            "items" | "dictsort" | "reverse" => deeper(base),
            "length" | "count" | "int" | "float" | "abs" | "bool" | "round" => Some(Size::number()),
            "selectattr" | "rejectattr" | "select" | "reject" if arguments.is_known() => Some(base),
            // Of an attribute of each; a name of a filter would be an argument without a name.
            "map" if filter.args.iter().all(is_attribute) => Some(base),
            // What is between two items, which take a byte at least.
            "join" => match filter.args.as_slice() {
                [] => Some(base.printed()),
                [CallArg::Pos(Expr::Const(between))] => {
                    let between = between.value.to_string().len() as u64;
                    Some(base.printed().plus(&text(base.times(between))))
                }
                _ => None,
            },
            "default" | "d" => Some(base.or(&arguments)),
            "replace" => self.replaced(&base.printed(), &filter.args),
            // Escapes and white space; wider indentation multiplies what is nested.
            "tojson" if filter.args.iter().all(is_narrow) && self.fits(&base, MAX_READ) => {
                Some(text(base.times(PRINTED)))
            }
            _ => None,
        }
    }

    /// A text in other letters, which may be longer ones.
    fn letters(&self, size: &Size) -> Option<Size> {
        self.fits(size, MAX_READ).then(|| text(size.times(3)))
    }

    /// A text with something of the template's in place of something else.
    fn replaced(&self, size: &Size, arguments: &[CallArg<'_>]) -> Option<Size> {
        let [
            CallArg::Pos(Expr::Const(old)),
            CallArg::Pos(Expr::Const(new)),
        ] = arguments
        else {
            return None;
        };
        let (old, new) = (old.value.as_str()?, new.value.as_str()?);
        let times = new.len().div_ceil(old.len().max(1)).max(1);
        let is_bounded = !old.is_empty() && self.fits(size, MAX_READ);
        is_bounded.then(|| text(size.times(times as u64)))
    }
}

/// A text of this size, which nests nothing.
fn text(mut size: Size) -> Size {
    size.depth = 0;
    size.kind = Kind::Text;
    size
}

/// Something that the engine makes of the value only when it is asked. Of what was there before a turn, it would be
/// made over itself with each.
fn deeper(mut size: Size) -> Option<Size> {
    size.depth += 1;
    (!size.is_carried()).then_some(size)
}

fn is_attribute(argument: &CallArg<'_>) -> bool {
    matches!(argument, CallArg::Kwarg("attribute", Expr::Const(_)))
}

fn is_narrow(argument: &CallArg<'_>) -> bool {
    let (CallArg::Pos(value) | CallArg::Kwarg(_, value)) = argument else {
        return false;
    };
    let Expr::Const(value) = value else {
        return false;
    };
    let value = &value.value;
    value.is_none()
        || value.kind() == minijinja::value::ValueKind::Bool
        || i64::try_from(value.clone()).is_ok_and(|width| (0..=4).contains(&width))
}

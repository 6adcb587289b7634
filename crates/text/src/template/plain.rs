//! Which templates may be rendered in the server's own process: loops over messages that write what they find. Owns the
//! proof, an upper bound on how much any value grows. Knows nothing of helpers and of how templates are rendered.
//!
//! A template is untrusted code, and the engine can be made to exhaust memory or the stack. All ways need one of:
//! calls of the template's own (macros, recursive loops), a value that contains itself or grows in a loop, or a
//! function that makes much of little (`range`, `*`, most filters). What has none of these, by its syntax tree,
//! makes values of at most [`MAX_GROWTH`] times its input. Anything unknown counts as unsafe: such a template is rendered
//! in a helper process, as before.

use std::collections::HashMap;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Stmt};
use minijinja::machinery::parse;

use super::engine;

/// Bytes of a template that is looked at. The longest real ones that qualify have a third.
const MAX_SOURCE: usize = 32 * 1024;
/// The growth of an input: of what a client may send to a template that is rendered here.
const INPUT: usize = 1024;
/// How large a value may become: eight times the input.
const MAX_GROWTH: usize = 8 * INPUT;
/// Bytes of a text in the template that count as one, as many as an input has for each.
const TEXT_BYTES: usize = super::INLINE_BYTES / INPUT;
/// Loops within one another: messages, their parts, the parts' fields.
const MAX_LOOPS: usize = 3;
/// A stack on which no syntax tree of so long a source overflows.
const STACK_BYTES: usize = 64 << 20;

/// Whether the template may be rendered where it was not confined.
pub(super) fn is_plain(adapted_source: &str) -> bool {
    if adapted_source.len() > MAX_SOURCE {
        return false;
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let proof = thread.spawn_scoped(scope, || {
            let syntax = engine::syntax();
            let tree = parse(adapted_source, "template", syntax).ok();
            tree.is_some_and(|tree| Proof::default().statement(&tree).is_some())
        });
        proof.is_ok_and(|proof| proof.join().unwrap_or(false))
    })
}

/// How large a value may become, in parts of [`INPUT`]; `None`: nobody knows.
type Growth = Option<usize>;

#[derive(Default)]
struct Proof<'a> {
    /// Growth of what was set, attributes of namespaces as `name.attribute`; what is absent is an input.
    variables: HashMap<String, usize>,
    namespaces: Vec<&'a str>,
    loops: usize,
}

impl<'a> Proof<'a> {
    fn statements(&mut self, statements: &'a [Stmt<'a>]) -> Option<()> {
        statements.iter().try_for_each(|one| self.statement(one))
    }

    fn statement(&mut self, statement: &'a Stmt<'a>) -> Option<()> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.value(&emit.expr).map(|_| ()),
            Stmt::EmitRaw(_) => Some(()),
            Stmt::IfCond(cond) => {
                self.value(&cond.expr)?;
                let before = self.variables.clone();
                self.statements(&cond.true_body)?;
                let after = std::mem::replace(&mut self.variables, before);
                self.statements(&cond.false_body)?;
                self.join(after);
                Some(())
            }
            Stmt::ForLoop(each) => self.each(each),
            Stmt::Set(set) => self.set(&set.target, &set.expr),
            // What it sets is not unset behind it here, so a name may count as larger than it is.
            Stmt::WithBlock(with) => {
                let before = self.variables.clone();
                for (target, value) in &with.assignments {
                    self.set(target, value)?;
                }
                self.statements(&with.body)?;
                self.join(before);
                Some(())
            }
            _ => None,
        }
    }

    fn each(&mut self, each: &'a ast::ForLoop<'a>) -> Option<()> {
        if each.recursive || self.loops >= MAX_LOOPS {
            return None;
        }
        let growth = self.value(&each.iter)?;
        self.loops += 1;
        self.assign(&each.target, growth)?;
        if let Some(filter) = &each.filter_expr {
            self.value(filter)?;
        }
        let before = self.variables.clone();
        self.statements(&each.body)?;
        let once = self.variables.clone();
        // What one turn made larger the next would make larger again.
        self.join(before.clone());
        self.assign(&each.target, growth)?;
        self.statements(&each.body)?;
        if self.variables != once {
            return None;
        }
        // Names that were set outside have their old values again.
        self.join(before);
        self.loops -= 1;
        self.statements(&each.else_body)
    }

    fn set(&mut self, target: &'a Expr<'a>, value: &'a Expr<'a>) -> Option<()> {
        if let Expr::Call(call) = value
            && let (Expr::Var(function), Expr::Var(name)) = (&call.expr, target)
            && function.id == "namespace"
        {
            for argument in &call.args {
                let CallArg::Kwarg(attribute, value) = argument else {
                    return None;
                };
                let growth = self.value(value)?;
                self.grow(format!("{}.{attribute}", name.id), growth)?;
            }
            self.namespaces.push(name.id);
            return Some(());
        }
        let growth = self.value(value)?;
        self.assign(target, growth)
    }

    fn assign(&mut self, target: &'a Expr<'a>, growth: usize) -> Option<()> {
        match target {
            // Another value under a namespace's name, or under one that the engine has.
            Expr::Var(name) if self.namespaces.contains(&name.id) || name.id == "loop" => None,
            Expr::Var(name) => self.grow(name.id.to_owned(), growth),
            Expr::GetAttr(attribute) => match &attribute.expr {
                Expr::Var(name) if self.namespaces.contains(&name.id) => {
                    self.grow(format!("{}.{}", name.id, attribute.name), growth)
                }
                _ => None,
            },
            Expr::List(list) => list
                .items
                .iter()
                .try_for_each(|one| self.assign(one, growth)),
            Expr::Tuple(list) => list
                .items
                .iter()
                .try_for_each(|one| self.assign(one, growth)),
            _ => None,
        }
    }

    fn grow(&mut self, name: String, growth: usize) -> Option<()> {
        self.variables.insert(name, growth);
        (growth <= MAX_GROWTH).then_some(())
    }

    /// Takes the larger of what each name has here and what it had on another way.
    fn join(&mut self, other: HashMap<String, usize>) {
        let unset = |name: &str| if name.contains('.') { 1 } else { INPUT };
        for (name, growth) in &mut self.variables {
            let others = other.get(name).copied().unwrap_or_else(|| unset(name));
            *growth = others.max(*growth);
        }
        for (name, growth) in other {
            let least = unset(&name);
            self.variables.entry(name).or_insert(growth.max(least));
        }
    }

    fn all(&mut self, parts: impl IntoIterator<Item = &'a Expr<'a>>) -> Option<()> {
        parts
            .into_iter()
            .try_for_each(|part| self.value(part).map(|_| ()))
    }

    fn value(&mut self, expression: &'a Expr<'a>) -> Growth {
        self.of(expression).filter(|growth| *growth <= MAX_GROWTH)
    }

    fn of(&mut self, expression: &'a Expr<'a>) -> Growth {
        match expression {
            Expr::Const(one) if one.value.is_number() => Some(0),
            Expr::Const(one) => Some(1 + one.value.to_string().len() / TEXT_BYTES),
            // A namespace itself could be put into itself.
            Expr::Var(name) if self.namespaces.contains(&name.id) => None,
            Expr::Var(name) => Some(self.variables.get(name.id).copied().unwrap_or(INPUT)),
            Expr::GetAttr(get) => match &get.expr {
                Expr::Var(name) if self.namespaces.contains(&name.id) => {
                    let name = format!("{}.{}", name.id, get.name);
                    Some(self.variables.get(&name).copied().unwrap_or(1))
                }
                base => self.value(base),
            },
            Expr::GetItem(get) => {
                self.value(&get.subscript_expr)?;
                self.value(&get.expr)
            }
            Expr::Slice(slice) => {
                self.all(
                    [&slice.start, &slice.stop, &slice.step]
                        .into_iter()
                        .flatten(),
                )?;
                self.value(&slice.expr)
            }
            Expr::UnaryOp(operation) => self.value(&operation.expr).map(|_| 1),
            Expr::Compare(compare) => {
                self.all(compare.ops.iter().map(|one| &one.expr))?;
                self.value(&compare.expr).map(|_| 1)
            }
            Expr::Test(test) => {
                self.arguments(&test.args)?;
                self.value(&test.expr).map(|_| 1)
            }
            Expr::BinOp(operation) => self.operation(operation),
            Expr::IfExpr(choice) => {
                self.value(&choice.test_expr)?;
                let otherwise = choice.false_expr.as_ref().map(|one| self.value(one));
                let otherwise = otherwise.unwrap_or(Some(1))?;
                Some(self.value(&choice.true_expr)?.max(otherwise))
            }
            Expr::Filter(filter) => {
                let arguments = self.arguments(&filter.args)?;
                let base = filter
                    .expr
                    .as_ref()
                    .map_or(Some(1), |base| self.value(base))?;
                filtered(filter.name, base, arguments, &filter.args)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.sum(&list.items),
            Expr::Tuple(list) => self.sum(&list.items),
            Expr::Map(map) => Some(self.sum(&map.keys)? + self.sum(&map.values)?),
        }
    }

    fn operation(&mut self, operation: &'a ast::BinOp<'a>) -> Growth {
        let (left, right) = (self.value(&operation.left)?, self.value(&operation.right)?);
        match operation.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => Some(left.max(right)),
            BinOpKind::Add | BinOpKind::Concat => Some(left + right),
            // A text times a number.
            BinOpKind::Mul | BinOpKind::Pow => None,
            _ => Some(1),
        }
    }

    fn sum(&mut self, parts: &'a [Expr<'a>]) -> Growth {
        parts
            .iter()
            .try_fold(1, |sum, part| Some(sum + self.value(part)?))
    }

    /// The largest growth of arguments.
    fn arguments(&mut self, arguments: &'a [CallArg<'a>]) -> Growth {
        arguments
            .iter()
            .try_fold(0, |largest, argument| match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => {
                    Some(self.value(value)?.max(largest))
                }
                _ => None,
            })
    }

    fn call(&mut self, call: &'a ast::Call<'a>) -> Growth {
        let arguments = self.arguments(&call.args)?;
        match &call.expr {
            Expr::Var(function) => match function.id {
                "raise_exception" => Some(arguments),
                "strftime_now" if arguments < INPUT => Some(1),
                _ => None,
            },
            Expr::GetAttr(method) => {
                let base = self.value(&method.expr)?;
                match method.name {
                    "startswith" | "endswith" => Some(1),
                    "strip" | "lstrip" | "rstrip" | "removeprefix" | "removesuffix" | "split"
                    | "rsplit" | "partition" | "rpartition" | "upper" | "lower" | "title"
                    | "capitalize" | "items" | "keys" | "values" => Some(base),
                    "get" => Some(base.max(arguments)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// What a filter makes of a value; only filters that are known not to multiply it.
fn filtered(name: &str, base: usize, arguments: usize, given: &[CallArg<'_>]) -> Growth {
    match name {
        "trim" | "string" | "upper" | "lower" | "title" | "capitalize" | "first" | "last"
        | "list" | "items" | "safe" => Some(base),
        "length" | "count" | "int" | "float" | "abs" => Some(0),
        "selectattr" | "rejectattr" if arguments < INPUT => Some(base),
        "default" | "d" => Some(base.max(arguments)),
        // Escapes and white space; wider indentation multiplies what is nested.
        "tojson" if given.iter().all(is_narrow) => Some(2 * base),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::source::adapt;

    fn plain(source: &str) -> bool {
        is_plain(&adapt(source))
    }

    #[test]
    fn loops_over_messages_are_plain() {
        for source in [
            "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
             {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
            "{% set ns = namespace(system='', first=true) %}{% for m in messages %}{% if m.role == 'system' %}\
             {% set ns.system = m.content %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}\
             {% for m in messages %}{% set text = '<s>' + m.content | trim + '</s>' %}\
             {% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}{{ text }}{% endfor %}",
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% set state = namespace(count=0) %}\
             {% for m in users %}{% set state.count = state.count + 1 %}{% endfor %}{{ state.count }}",
            "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}\
             {% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}\
             {{ m.content.split('</think>')[-1].lstrip('\n') }}{% endfor %}{{ tools | tojson(indent=4) }}",
        ] {
            assert!(plain(source), "{source}");
        }
    }

    #[test]
    fn whatever_can_grow_recur_or_contain_itself_is_not() {
        for source in [
            "{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for m in messages %}{% set ns.x = [ns.x] %}{% endfor %}",
            "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
            "{% set x = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}{% set x = x ~ x ~ x ~ x ~ x ~ x ~ x ~ x %}\
             {% set x = x ~ x ~ x ~ x ~ x ~ x ~ x ~ x %}{% set x = x ~ x ~ x ~ x ~ x ~ x ~ x ~ x %}\
             {% set x = x ~ x ~ x ~ x ~ x ~ x ~ x ~ x %}{% set x = x ~ x ~ x ~ x ~ x ~ x ~ x ~ x %}",
            "{% set x = messages[0].content %}{% set x = x ~ x ~ x ~ x %}{% for m in messages %}{% set x = 'a' %}{% endfor %}\
             {% set x = x ~ x ~ x ~ x %}",
            "{% for m in messages %}{% set x = x ~ m.content %}{% endfor %}",
            "{% set x = messages[0].content %}{% set x = x ~ x %}{% set x = x ~ x %}{% set x = x ~ x %}{% set x = x ~ x %}",
            "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
            "{% for m in messages recursive %}{{ loop(m) }}{% endfor %}",
            "{{ 'a' * 1000000000 }}",
            "{{ range(100000) | list }}",
            "{{ messages | join(messages[0].content) }}",
            "{{ messages[0].content.replace('', messages[0].content) }}",
            "{{ messages | tojson(indent=64) }}",
            "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% for d in messages %}x{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
            "{% set x %}{{ messages }}{% endset %}{{ x }}",
            "{% set loop = messages %}",
            "{% set x = ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 1] %}{% for m in messages %}{% set x = x + x %}{% endfor %}{{ x }}",
            "{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + loop.index %}{% endfor %}",
            "{% with x = messages %}{% for m in x %}{% set ns = [ns] %}{% endfor %}{% endwith %}",
            "{{",
        ] {
            assert!(!plain(source), "{source}");
        }
        assert!(!plain(&"{{ a }}".repeat(10_000)));
        assert!(!plain(&format!("{{{{ a{} }}}}", ".b".repeat(20_000))));
    }
}

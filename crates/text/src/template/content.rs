//! Whether a chat template reads a message's `content` as a list of parts, by its syntax tree. Owns that judgement;
//! knows neither messages nor how they are rendered.
//!
//! Templates of models that see images loop over `content`. Most of them take a string as well, and some render
//! nothing for one: their text would be lost without an error.

use std::collections::{HashMap, HashSet};

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Expr, Stmt};
use minijinja::machinery::parse;

use super::large_stack::{MAX_SOURCE, on_large_stack};
use super::{engine, source};

/// Names that are passed from one to the next: `content` to a macro, and from there to a variable.
const MAX_PASSES: usize = 8;

/// How a template takes the `content` of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentForm {
    /// As a string.
    #[default]
    Text,
    /// As a string or a list of parts.
    TextOrParts,
    /// As a list of parts only: a string renders nothing.
    Parts,
}

impl ContentForm {
    /// The form that all of a model's templates take; a string where they differ.
    pub(super) fn of(templates: &[(String, String)]) -> Self {
        let mut forms = templates.iter().map(|(_, text)| read(&source::adapt(text)));
        let first = forms.next().unwrap_or_default();
        if forms.all(|form| form == first) {
            first
        } else {
            Self::Text
        }
    }
}

fn read(adapted_source: &str) -> ContentForm {
    if adapted_source.len() > MAX_SOURCE {
        return ContentForm::Text;
    }
    let form = on_large_stack(|| {
        let tree = parse(adapted_source, "template", engine::syntax()).ok()?;
        let mut found = Found::default();
        found.statement(&tree);
        Some(found.form())
    });
    form.flatten().unwrap_or_default()
}

/// What a template does, whatever the order.
#[derive(Default)]
struct Found<'a> {
    /// Names and what is assigned to them.
    assigned: Vec<(&'a str, &'a Expr<'a>)>,
    /// Parameters of macros.
    macros: HashMap<&'a str, Vec<&'a str>>,
    calls: Vec<&'a Call<'a>>,
    /// What is gone through as a list.
    listed: Vec<&'a Expr<'a>>,
    /// What is asked whether it is a string.
    asked: Vec<&'a Expr<'a>>,
    /// What is written as it is.
    written: Vec<&'a Expr<'a>>,
}

impl<'a> Found<'a> {
    fn form(&self) -> ContentForm {
        let mut names = HashSet::new();
        for _ in 0..MAX_PASSES {
            let known = names.len();
            for (name, value) in &self.assigned {
                if is_content(value, &names) {
                    names.insert(*name);
                }
            }
            for call in &self.calls {
                let parameters = match &call.expr {
                    Expr::Var(function) => self.macros.get(function.id),
                    _ => None,
                };
                for (index, argument) in call.args.iter().enumerate() {
                    let name = match argument {
                        CallArg::Pos(_) => parameters.and_then(|names| names.get(index)).copied(),
                        CallArg::Kwarg(name, _) => parameters.map(|_| *name),
                        _ => None,
                    };
                    if let (Some(name), CallArg::Pos(value) | CallArg::Kwarg(_, value)) =
                        (name, argument)
                        && is_content(value, &names)
                    {
                        names.insert(name);
                    }
                }
            }
            if names.len() == known {
                break;
            }
        }
        let any = |of: &[&Expr<'a>]| of.iter().any(|one| is_content(one, &names));
        match (any(&self.listed), any(&self.asked) || any(&self.written)) {
            (false, _) => ContentForm::Text,
            (true, true) => ContentForm::TextOrParts,
            (true, false) => ContentForm::Parts,
        }
    }

    fn statements(&mut self, statements: &'a [Stmt<'a>]) {
        for one in statements {
            self.statement(one);
        }
    }

    fn statement(&mut self, statement: &'a Stmt<'a>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => {
                self.written.push(bare(&emit.expr));
                self.value(&emit.expr);
            }
            Stmt::ForLoop(each) => {
                self.listed.push(&each.iter);
                self.value(&each.iter);
                if let Some(filter) = &each.filter_expr {
                    self.value(filter);
                }
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(cond) => {
                self.value(&cond.expr);
                self.statements(&cond.true_body);
                self.statements(&cond.false_body);
            }
            Stmt::Set(set) => self.assign(&set.target, &set.expr),
            Stmt::SetBlock(set) => self.statements(&set.body),
            Stmt::WithBlock(with) => {
                for (target, value) in &with.assignments {
                    self.assign(target, value);
                }
                self.statements(&with.body);
            }
            Stmt::AutoEscape(block) => self.statements(&block.body),
            Stmt::FilterBlock(block) => self.statements(&block.body),
            Stmt::Block(block) => self.statements(&block.body),
            Stmt::Macro(definition) => {
                let parameters = definition.args.iter().map(|one| match one {
                    Expr::Var(name) => name.id,
                    _ => "",
                });
                self.macros.insert(definition.name, parameters.collect());
                self.statements(&definition.body);
            }
            Stmt::CallBlock(block) => {
                self.call(&block.call);
                self.statements(&block.macro_decl.body);
            }
            Stmt::Do(call) => self.call(&call.call),
            _ => {}
        }
    }

    fn assign(&mut self, target: &'a Expr<'a>, value: &'a Expr<'a>) {
        if let Expr::Var(name) = target {
            self.assigned.push((name.id, value));
        }
        self.value(value);
    }

    fn all(&mut self, values: impl IntoIterator<Item = &'a Expr<'a>>) {
        for value in values {
            self.value(value);
        }
    }

    fn arguments(&mut self, arguments: &'a [CallArg<'a>]) {
        for argument in arguments {
            let (CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value)) = argument;
            self.value(value);
        }
    }

    fn call(&mut self, call: &'a Call<'a>) {
        self.calls.push(call);
        self.value(&call.expr);
        self.arguments(&call.args);
    }

    fn value(&mut self, expression: &'a Expr<'a>) {
        match expression {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.all(
                    [&slice.start, &slice.stop, &slice.step]
                        .into_iter()
                        .flatten(),
                );
                self.value(&slice.expr);
            }
            Expr::UnaryOp(operation) => self.value(&operation.expr),
            Expr::BinOp(operation) => {
                if matches!(operation.op, BinOpKind::Add | BinOpKind::Concat) {
                    self.written.push(bare(&operation.left));
                    self.written.push(bare(&operation.right));
                }
                self.all([&operation.left, &operation.right]);
            }
            Expr::Compare(compare) => {
                self.value(&compare.expr);
                self.all(compare.ops.iter().map(|one| &one.expr));
            }
            Expr::IfExpr(choice) => {
                self.all([&choice.test_expr, &choice.true_expr]);
                self.all(&choice.false_expr);
            }
            Expr::Filter(filter) => {
                if let Some(base) = &filter.expr {
                    if matches!(filter.name, "selectattr" | "rejectattr" | "map") {
                        self.listed.push(base);
                    }
                    self.value(base);
                }
                self.arguments(&filter.args);
            }
            Expr::Test(test) => {
                if test.name == "string" {
                    self.asked.push(&test.expr);
                }
                self.value(&test.expr);
                self.arguments(&test.args);
            }
            Expr::GetAttr(get) => {
                self.listed.extend(first_part(&get.expr, get.name));
                self.value(&get.expr);
            }
            Expr::GetItem(get) => {
                if let Some(name) = text(&get.subscript_expr) {
                    self.listed.extend(first_part(&get.expr, name));
                }
                self.all([&get.expr, &get.subscript_expr]);
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.all(&list.items),
            Expr::Tuple(list) => self.all(&list.items),
            Expr::Map(map) => self.all(map.keys.iter().chain(&map.values)),
        }
    }
}

/// The list in `list[0].text`.
fn first_part<'a>(part: &'a Expr<'a>, field: &str) -> Option<&'a Expr<'a>> {
    match part {
        Expr::GetItem(get) if field == "text" => match &get.subscript_expr {
            Expr::Const(index) if index.value.is_number() => Some(&get.expr),
            _ => None,
        },
        _ => None,
    }
}

fn text<'a>(expression: &'a Expr<'a>) -> Option<&'a str> {
    match expression {
        Expr::Const(one) => one.value.as_str(),
        _ => None,
    }
}

/// What is written once filters and methods of strings are taken away.
fn bare<'a>(mut expression: &'a Expr<'a>) -> &'a Expr<'a> {
    loop {
        expression = match expression {
            Expr::Filter(filter) if matches!(filter.name, "trim" | "string" | "safe") => {
                match &filter.expr {
                    Some(base) => base,
                    None => return expression,
                }
            }
            Expr::Call(call) => match &call.expr {
                Expr::GetAttr(method) if matches!(method.name, "strip" | "lstrip" | "rstrip") => {
                    &method.expr
                }
                _ => return expression,
            },
            _ => return expression,
        }
    }
}

/// Whether the expression is a message's content, or one of these names that have it.
fn is_content(expression: &Expr<'_>, names: &HashSet<&str>) -> bool {
    match expression {
        Expr::Var(name) => names.contains(name.id),
        Expr::GetAttr(get) => get.name == "content",
        Expr::GetItem(get) => text(&get.subscript_expr) == Some("content"),
        Expr::Call(call) => match (&call.expr, call.args.first()) {
            (Expr::GetAttr(method), Some(CallArg::Pos(name))) => {
                method.name == "get" && text(name) == Some("content")
            }
            _ => false,
        },
        Expr::Slice(slice) => is_content(&slice.expr, names),
        Expr::IfExpr(choice) => {
            let otherwise = choice.false_expr.as_ref();
            is_content(&choice.true_expr, names)
                || otherwise.is_some_and(|one| is_content(one, names))
        }
        Expr::BinOp(operation) => {
            matches!(operation.op, BinOpKind::ScAnd | BinOpKind::ScOr)
                && (is_content(&operation.left, names) || is_content(&operation.right, names))
        }
        Expr::Filter(filter) => {
            let keeps = matches!(
                filter.name,
                "list" | "selectattr" | "rejectattr" | "default" | "d" | "reverse"
            );
            let base = filter.expr.as_ref();
            keeps && base.is_some_and(|base| is_content(base, names))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(source: &str) -> ContentForm {
        ContentForm::of(&[("default".to_owned(), source.to_owned())])
    }

    #[test]
    fn a_template_s_tree_tells_what_content_it_takes() {
        for (expected, sources) in [
            (
                ContentForm::Text,
                [
                    "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}",
                    // It asks, but goes through nothing.
                    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}",
                    // Another list.
                    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.name }}{% endfor %}{{ m.content }}{% endfor %}",
                    "{% for m in messages %}{{ m.content.split('</think>')[0].text }}{% endfor %}",
                    "{% broken",
                ]
                .as_slice(),
            ),
            (
                ContentForm::TextOrParts,
                &[
                    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}\
                     {% for part in m['content'] %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
                    "{% macro text(content) %}{% if content is not string %}{% for part in content %}{{ part.text }}\
                     {% endfor %}{% else %}{{ content }}{% endif %}{% endmacro %}\
                     {% for m in messages %}{{ text(m.content) }}{% endfor %}",
                    // Strings for one role, lists for another.
                    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content | trim }}{% else %}\
                     {% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
                    "{% set first = messages[0].get('content') %}{{ '<s>' + first }}\
                     {{ first | map(attribute='text') | join }}",
                ],
            ),
            (
                ContentForm::Parts,
                &[
                    "{% for m in messages %}{{ m.role }}{% for line in m['content'] %}\
                     {% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}{% endfor %}",
                    "{% for m in messages %}{% set content = m.content or [] %}\
                     {% for part in content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}{% endfor %}",
                    "{% for m in messages %}{{ m.content[0]['text'] }}{% endfor %}",
                    "{% macro text(parts) %}{% for part in parts %}{{ part.text }}{% endfor %}{% endmacro %}\
                     {% for m in messages %}{{ text(parts=m.content) }}{% endfor %}",
                ],
            ),
        ] {
            for source in sources {
                assert_eq!(form(source), expected, "{source}");
            }
        }
    }

    #[test]
    fn templates_that_differ_get_strings() {
        let lists = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}";
        let templates = |other: &str| {
            let both = [("default", lists), ("tool_use", other)];
            both.map(|(name, source)| (name.to_owned(), source.to_owned()))
        };
        assert_eq!(ContentForm::of(&templates(lists)), ContentForm::Parts);
        let strings = "{{ messages[0].content }}";
        assert_eq!(ContentForm::of(&templates(strings)), ContentForm::Text);
        assert_eq!(
            form(&(lists.to_owned() + &" ".repeat(MAX_SOURCE))),
            ContentForm::Text
        );
        let chain = format!("{{{{ messages{} }}}}", "+messages".repeat(3_000));
        assert_eq!(form(&chain), ContentForm::Text);
    }
}

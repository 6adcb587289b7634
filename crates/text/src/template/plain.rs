//! Which templates may be rendered in the server's own process: loops over messages that write what they find. Owns
//! the question and its limits of effort; the proof is `proof`'s. Knows nothing of helpers and of how templates are
//! rendered.
//!
//! A template is untrusted code, and the engine can be made to exhaust memory or the stack. A template is plain if
//! its syntax tree shows that no value gets larger than some megabytes and none is nested deeply, for every input
//! that is rendered here. Anything unknown counts as unsafe: such a template is rendered in a helper process, as
//! before.

mod proof;
mod size;
mod turns;

use minijinja::machinery::parse;

use super::engine;
use super::large_stack::{MAX_SOURCE, on_large_stack};
use proof::Proof;

/// Whether the template may be rendered where it was not confined.
pub(super) fn is_plain(adapted_source: &str) -> bool {
    if adapted_source.len() > MAX_SOURCE {
        return false;
    }
    let proof = on_large_stack(|| {
        let tree = parse(adapted_source, "template", engine::syntax()).ok()?;
        Proof::default().template(&tree)
    });
    proof.flatten().is_some()
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
    fn the_embedded_model_s_template_is_plain() {
        let source = include_str!("../../../../python/inflight/demo/chat_template.jinja");
        assert!(plain(source));
    }

    #[test]
    fn what_grows_by_a_part_of_each_item_is_plain() {
        for source in [
            "{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{% endfor %}{{ ns.x }}",
            "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}{{ ns.all | length }}",
            "{% set ns = namespace(n=0, text='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}\
             {% set ns.text = ns.text ~ '<image ' ~ ns.n ~ '>' %}{% endfor %}{{ ns.text }}",
            "{% set ns = namespace(last='') %}{% for m in messages %}{% set ns.last = m.content %}{% endfor %}{{ ns.last }}",
            "{% set x %}{{ messages }}{% endset %}{{ x }}",
            "{% macro text_of(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}{% endfor %}{% endif %}{% endmacro %}\
             {% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + text_of(m.content) + '<|im_end|>' }}{% endfor %}",
            "{% macro keys(given, known=[]) %}{% if given is mapping %}{% for k in given if k not in known %}\
             <{{ k }}>{{ given[k] | tojson }}</{{ k }}>{% endfor %}{% endif %}{% endmacro %}\
             {% for t in tools %}{% set shown = keys(t.parameters, known=['type']) %}{{ shown | trim }}{% endfor %}",
            "{% macro outer(m) %}{{ inner(m.content) }}{% endmacro %}{% macro inner(c) %}{{ c | trim }}{% endmacro %}{{ outer(messages[0]) }}",
            "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
            "{{ messages | map(attribute='role') | join(', ') }}{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}",
        ] {
            assert!(plain(source), "{source}");
        }
    }

    #[test]
    fn whatever_can_grow_without_bound_recur_or_nest_is_not() {
        let doubled = "{% set x = x ~ x %}".repeat(24);
        let quoted = "{% set x = [x] | string %}".repeat(24);
        let nested = "{% set x = [x] %}".repeat(1_000);
        let sliced = "{% set x = x[1:] %}".repeat(1_000);
        let set = |rest: &str| format!("{{% set x = messages[0].content %}}{rest}{{{{ x }}}}");
        let chain =
            (1..=20).map(|f| format!("{{% macro f{f}() %}}{{{{ f{}() }}}}{{% endmacro %}}", f - 1));
        let chain = format!(
            "{{% macro f0() %}}{{% endmacro %}}{}{{{{ f20() }}}}",
            chain.collect::<String>()
        );
        for source in [
            set(&doubled),
            set(&quoted),
            set(&nested),
            set(&sliced),
            chain,
        ] {
            assert!(!plain(&source), "{source}");
        }
        for source in [
            "{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{% set ns = namespace(x='a', y='b') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.y %}{% set ns.y = ns.x %}{% endfor %}",
            "{% set ns = namespace(x='a', y='b') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content %}\
             {% set ns.y = ns.y ~ ns.x %}{% endfor %}",
            "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ messages %}{% endfor %}",
            "{% set ns = namespace(x='') %}{% for a in messages %}{% for b in messages %}{% set ns.x = ns.x ~ a.content %}{% endfor %}{% endfor %}",
            "{% set ns = namespace(x='') %}{% for m in messages %}{% if m.a %}{% set ns.x = ns.x ~ ns.x %}{% continue %}{% endif %}\
             {% set ns.x = '' %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for m in messages %}{% set ns.x = [ns.x] %}{% endfor %}",
            "{% set ns = namespace(x=1) %}{% for m in messages %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
            "{% set ns = namespace(x=1, y=2) %}{% for m in messages %}{% set ns.y = [ns.x] %}{% set ns.x = ns.y %}{% endfor %}",
            "{% set ns = namespace(x=messages) %}{% for m in messages %}{% set ns.x = ns.x[1:] %}{% endfor %}{{ ns.x }}",
            "{% set ns = namespace(x=messages[0]) %}{% for m in messages %}{% set ns.x = ns.x | items %}{% endfor %}{{ ns.x }}",
            "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
            "{% set x = messages %}{% set x = namespace() %}",
            "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
            "{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
            "{% macro f(n) %}{% for a in messages %}{{ messages }}{% endfor %}{% endmacro %}{% set x = f(1) %}",
            "{% macro f(m) %}{% for k in m %}{{ m[k] }}{% endfor %}{% endmacro %}{{ f(messages[0]) }}",
            "{% if messages %}{% macro f(n) %}a{% endmacro %}{% endif %}{{ f(1) }}",
            "{% macro f(n) %}a{% endmacro %}{% set f = messages %}",
            "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ messages }}{% endcall %}",
            "{% for m in messages recursive %}{{ loop(m) }}{% endfor %}",
            "{% for m in messages %}{% set l = loop %}{% endfor %}",
            "{% set x %}{% for m in messages %}{{ loop.nextitem }}{{ loop.previtem }}{% endfor %}{% endset %}",
            "{{ 'a' * 1000000000 }}",
            "{{ range(100000) | list }}",
            "{{ messages | join(messages[0].content) }}",
            "{{ messages[0].content.replace('', messages[0].content) }}",
            "{{ messages | tojson(indent=64) }}",
            "{% set loop = messages %}",
            "{% set x = ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 1] %}{% for m in messages %}{% set x = x + x %}{% endfor %}{{ x }}",
            "{% with x = messages %}{% for m in x %}{% set ns = [ns] %}{% endfor %}{% endwith %}",
            "{% include 'other' %}",
            "{{",
        ] {
            assert!(!plain(source), "{source}");
        }
        assert!(!plain(&"{{ a }}".repeat(10_000)));
        assert!(!plain(&format!("{{{{ a{} }}}}", ".b".repeat(20_000))));
    }
}

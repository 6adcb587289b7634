use super::*;

/// A slice as the API's reference has it, of endpoints `(address, uid, conditions)`.
fn slice(name: &str, family: &str, endpoints: &[(&str, &str, &str)]) -> Slice {
    let endpoints = endpoints.iter().map(|(address, uid, conditions)| {
        format!(
            r#"{{"addresses":["{address}"],"conditions":{{{conditions}}},"nodeName":"node-1",
                "targetRef":{{"kind":"Pod","namespace":"ml","name":"llama-0","uid":"{uid}"}},"zone":"a"}}"#
        )
    });
    let endpoints: Vec<String> = endpoints.collect();
    let text = format!(
        r#"{{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1",
            "metadata":{{"name":"{name}","generateName":"llama-","namespace":"ml","uid":"1","resourceVersion":"7",
                "generation":3,"labels":{{"kubernetes.io/service-name":"llama"}},"ownerReferences":[]}},
            "addressType":"{family}","endpoints":[{}],
            "ports":[{{"name":"metrics","protocol":"TCP","port":8002}},{{"name":"grpc","protocol":"TCP","port":8001}}]}}"#,
        endpoints.join(",")
    );
    serde_json::from_str(&text).unwrap()
}

fn listing(slices: &[Slice], choice: &PortChoice) -> Result<Listing, SliceError> {
    let mut all = Slices::default();
    for slice in slices {
        all.put(slice.clone())?;
    }
    all.listing("", choice)
}

/// Listed and leaving addresses, with the usual port.
fn addresses(slices: &[Slice]) -> [String; 2] {
    let listing = listing(slices, &PortChoice::Usual).unwrap();
    assert_eq!(listing.missing, Missing::Doubtful);
    [listing.listed.join(" "), listing.leaving.join(" ")]
}

#[test]
fn conditions_say_who_gets_requests() {
    for (conditions, listed, leaving) in [
        ("", true, false),
        (
            r#""ready":true,"serving":true,"terminating":false"#,
            true,
            false,
        ),
        (r#""ready":null,"terminating":null"#, true, false),
        (
            r#""ready":false,"serving":false,"terminating":false"#,
            false,
            false,
        ),
        (
            r#""ready":false,"serving":true,"terminating":true"#,
            false,
            true,
        ),
        (
            r#""ready":false,"serving":false,"terminating":true"#,
            false,
            true,
        ),
        // With `publishNotReadyAddresses`, what terminates is ready.
        (
            r#""ready":true,"serving":true,"terminating":true"#,
            false,
            true,
        ),
    ] {
        let found = addresses(&[slice("s", "IPv4", &[("10.0.0.1", "a", conditions)])]);
        let shown = |is: bool| if is { "10.0.0.1:8001" } else { "" }.to_owned();
        assert_eq!(found, [shown(listed), shown(leaving)], "{conditions}");
    }
}

#[test]
fn a_pod_is_one_worker_however_many_slices_have_it() {
    const READY: &str = r#""ready":true"#;
    const LEAVING: &str = r#""ready":false,"terminating":true"#;
    let v6 = slice(
        "a-v6",
        "IPv6",
        &[("fd00::1", "a", READY), ("fd00:0::2", "b", READY)],
    );
    let v4 = slice("v4", "IPv4", &[("10.0.0.1", "a", READY)]);
    let both = [v6.clone(), v4];
    assert_eq!(addresses(&both), ["10.0.0.1:8001 [fd00::2]:8001", ""]);
    assert_eq!(addresses(&[v6]), ["[fd00::1]:8001 [fd00::2]:8001", ""]);
    // On its way from one slice to another; the older copy may be late.
    let moved = [
        slice(
            "s1",
            "IPv4",
            &[("10.0.0.1", "a", LEAVING), ("10.0.0.2", "b", READY)],
        ),
        slice(
            "s2",
            "IPv4",
            &[("10.0.0.1", "a", READY), ("10.0.0.3", "c", LEAVING)],
        ),
    ];
    assert_eq!(
        addresses(&moved),
        ["10.0.0.1:8001 10.0.0.2:8001", "10.0.0.3:8001"]
    );
    // Endpoints without a Pod differ by their addresses.
    let bare = slice(
        "s",
        "IPv4",
        &[("10.0.0.1", "", READY), ("10.0.0.2", "", READY)],
    );
    assert_eq!(
        addresses(&[bare.clone(), bare]),
        ["10.0.0.1:8001 10.0.0.2:8001", ""]
    );
    let named = slice("s", "FQDN", &[("llama-0.example", "a", READY)]);
    assert_eq!(addresses(&[named]), ["llama-0.example:8001", ""]);
}

#[test]
fn the_port_is_the_one_that_was_chosen_or_the_usual_one() {
    let usual = slice("s", "IPv4", &[("10.0.0.1", "a", "")]);
    let with_ports = |ports: &str| {
        let ports: Option<Vec<Port>> = serde_json::from_str(ports).unwrap();
        Slice {
            ports,
            ..usual.clone()
        }
    };
    let named = |name: &str| PortChoice::Name(name.to_owned());
    let found = |slice: &Slice, choice: PortChoice| {
        let listing = listing(std::slice::from_ref(slice), &choice);
        listing.map(|listing| listing.listed.concat())
    };
    let at = |port: u16| Ok(format!("10.0.0.1:{port}"));
    assert_eq!(found(&usual, PortChoice::Usual), at(8001));
    assert_eq!(found(&usual, named("metrics")), at(8002));
    assert_eq!(found(&usual, PortChoice::Number(9)), at(9));
    assert_eq!(
        found(&usual, named("web")),
        Err(SliceError::NoPort("web".to_owned()))
    );
    let only = with_ports(r#"[{"name":"","port":7,"protocol":"TCP"}]"#);
    assert_eq!(found(&only, PortChoice::Usual), at(7));
    for none in [
        "null",
        "[]",
        r#"[{"name":"a","port":1},{"name":"b","port":2}]"#,
    ] {
        let slice = with_ports(none);
        assert_eq!(
            found(&slice, PortChoice::Usual),
            Err(SliceError::Ports),
            "{none}"
        );
        assert_eq!(found(&slice, PortChoice::Number(9)), at(9));
    }
    // A Service without Pods has a slice without ports.
    let empty = Slice {
        endpoints: None,
        ..with_ports("null")
    };
    assert_eq!(found(&empty, PortChoice::Usual), Ok(String::new()));
}

#[test]
fn what_cannot_be_an_address_makes_its_slice_useless() {
    for (family, address) in [
        ("IPv4", "fd00::1"),
        ("IPv4", "10.0.0.256"),
        ("IPv6", "10.0.0.1"),
        ("FQDN", "a b"),
        ("FQDN", ""),
    ] {
        let bad = listing(
            &[slice("s", family, &[(address, "a", "")])],
            &PortChoice::Usual,
        );
        assert_eq!(bad, Err(SliceError::Address(address.to_owned())));
    }
    let mut nameless = slice("s", "IPv4", &[]);
    nameless.metadata.name.clear();
    assert_eq!(
        listing(&[nameless], &PortChoice::Usual),
        Err(SliceError::Unnamed)
    );
}

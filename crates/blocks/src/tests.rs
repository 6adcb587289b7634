use proptest::prelude::*;

use super::*;

#[test]
fn keys_are_those_of_dynamo() {
    let tokens: Vec<i32> = (1..=12).collect();
    let plain = Seed::new(None, b"");
    assert_eq!(plain, Seed(1337));
    assert_eq!(hash_tokens(&tokens[4..8], 1337), 16_777_012_769_546_811_212);
    assert_eq!(hash_tokens(&tokens[8..], 1337), 483_935_686_894_639_516);
    assert_eq!(
        keys(&tokens, 4, plain),
        [
            14_643_705_804_678_351_452,
            4_945_711_292_740_353_085,
            12_583_592_247_330_656_132
        ]
    );
}

#[test]
fn adapters_and_salts_have_their_own_keys() {
    let tokens = [1, 2, 3, 4];
    let seeds = [
        Seed::new(None, b""),
        Seed::new(Some(0), b""),
        Seed::new(Some(7), b""),
        Seed::new(None, b"7"),
        Seed::new(Some(7), b"7"),
        Seed::new(Some(u64::MAX), b"7"),
        Seed::new(None, b"tenant-a"),
    ];
    let keys: std::collections::HashSet<u64> =
        seeds.map(|seed| Chain::new(seed).push(&tokens)).into();
    assert_eq!(keys.len(), seeds.len());
    // As text, as Dynamo has an adapter's name.
    assert_eq!(
        Seed::new(Some(1234), b"a"),
        Seed(
            1337_u64
                .wrapping_add(xxh3_64_with_seed(b"1234", 0))
                .wrapping_add(xxh3_64_with_seed(b"a", 1))
        )
    );
}

#[test]
fn only_full_blocks_have_keys() {
    let seed = Seed::new(None, b"");
    assert!(keys(&[1, 2, 3], 4, seed).is_empty());
    assert!(keys(&[], 4, seed).is_empty());
    assert!(keys(&[1, 2, 3], 0, seed).is_empty());
    assert_eq!(keys(&[1, 2, 3, 4, 5], 4, seed).len(), 1);
}

#[test]
fn numbers_become_decimal_digits() {
    for number in [0, 9, 10, 1234, u64::MAX] {
        assert_eq!(Digits::default().of(number), number.to_string().as_bytes());
    }
}

proptest! {
    #[test]
    fn a_chain_continues_after_any_block(
        tokens in proptest::collection::vec(any::<i32>(), 0..600),
        size in 1..300_usize,
        cut in 0..8_usize,
        id in any::<Option<u64>>(),
        salt in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let seed = Seed::new(id, &salt);
        let all = keys(&tokens, size, seed);
        prop_assert_eq!(all.len(), tokens.len() / size);
        // In one piece, as the definition says it.
        let mut last = None;
        for (block, key) in tokens.chunks_exact(size).zip(&all) {
            let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            let local = xxh3_64_with_seed(&bytes, seed.0);
            let expected = last.map_or(local, |last: u64| {
                let pair = [last.to_le_bytes(), local.to_le_bytes()].concat();
                xxh3_64_with_seed(&pair, seed.0)
            });
            prop_assert_eq!(*key, expected);
            last = Some(expected);
        }
        if let Some(before) = all.get(cut) {
            let mut chain = Chain::after(seed, *before);
            let rest = tokens.chunks_exact(size).skip(cut + 1).map(|block| chain.push(block));
            prop_assert_eq!(rest.collect::<Vec<_>>(), &all[cut + 1..]);
        }
    }
}

#[test]
fn a_chain_knows_its_last_key() {
    let seed = Seed::new(None, b"");
    let mut chain = Chain::new(seed);
    assert_eq!(chain.last(), None);
    for block in [[1, 2], [3, 4]] {
        let key = chain.push(&block);
        assert_eq!(chain.last(), Some(key));
    }
    assert_eq!(Chain::after(seed, 7).last(), Some(7));
}

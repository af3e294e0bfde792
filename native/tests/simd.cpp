// Every function of an instruction set against plain C++, bit for bit. Compiled once for each, with its flags.
#include HEADRACE_TEST_HEADER

#include "check.h"
#include "simd/math.h"
#include "simd/scalar.h"

namespace headrace::test {
namespace {

using V = HEADRACE_TEST_STRUCT;
using S = Scalar;

constexpr uint32_t kSpecial[] = {
    0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001,              // zeros, infinities, NaN
    0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f000000, 0xbf000000, 0x3fc00000,  // extremes, halves
    0xc0200000, 0x4b000001, 0x4effffff, 0xcf000000, 0x42b0c0a5, 0xc2b00000, 0x3f808000, 0x3f818000};

struct Numbers {
  uint32_t words[16], more[16], third[16];
  uint16_t halves[32];
  uint8_t bytes[64], bits[8];
  int8_t x[4], small[16];
  int32_t fit[16];
  float finite[16];

  explicit Numbers(Random& r) {
    auto word = [&r] { return r.one_in(4) ? kSpecial[r.below(sizeof kSpecial / 4)] : r.next(); };
    for (int i = 0; i < 16; i++) {
      words[i] = word(), more[i] = word(), third[i] = word();
      small[i] = int8_t(r.next()), fit[i] = r.between(-128, 127);
      finite[i] = r.real() * (r.one_in(2) ? 100.0f : 2147483000.0f);
      if (r.one_in(4)) finite[i] = float(r.between(-9, 9)) + 0.5f;  // ties
    }
    for (uint16_t& half : halves) half = uint16_t(r.next());
    for (uint8_t& byte : bytes) byte = uint8_t(r.next());
    for (uint8_t& byte : bits) byte = uint8_t(r.next());
    for (int8_t& byte : x) byte = int8_t(r.one_in(4) ? (r.one_in(2) ? 127 : -127) : r.between(-127, 127));
  }
};

template <class T> struct Vectors {
  typename T::F a, b, c;
  typename T::I i, j, small;
  typename T::B bytes;

  explicit Vectors(const Numbers& n)
      : a(floats(n.words)), b(floats(n.more)), c(floats(n.third)), i(ints(n.words)), j(ints(n.more)), small(T::iload(n.fit)),
        bytes(T::bload(n.bytes)) {}

  static typename T::F floats(const uint32_t* p) { return T::from_bits(ints(p)); }
  static typename T::I ints(const uint32_t* p) {
    int32_t copy[16];
    std::memcpy(copy, p, 64);
    return T::iload(copy);
  }
};

long number = 0;

void floats_equal(const char* what, V::F v, const S::F& s) {
  float got[16];
  V::store(got, v);
  if (!same(got, s.v, 16)) fail(V::kName, what, number);
}

void ints_equal(const char* what, V::I v, const S::I& s) {
  int32_t got[16];
  V::istore(got, v);
  if (std::memcmp(got, s.v, 64) != 0) fail(V::kName, what, number);
}

// Bytes come out by products with one of the four inputs at a time, which shows them as dot() takes them.
void bytes_equal(const char* what, V::B v, const S::B& s) {
  for (int k = 0; k < 4; k++) {
    int8_t one[4] = {};
    one[k] = 1;
    int32_t got[16];
    V::istore(got, V::dot(V::izero(), v, one));
    for (int i = 0; i < 16; i++)
      if (got[i] != (V::kSignedBytes ? int32_t(int8_t(s.v[4 * i + k])) : int32_t(s.v[4 * i + k]))) return fail(V::kName, what, number);
  }
}

#define FLOATS(expr_v, expr_s) floats_equal(#expr_s, expr_v, expr_s)
#define UNARY(f, x) floats_equal(#f, V::f(v.x), S::f(s.x))
#define BINARY(f) floats_equal(#f, V::f(v.a, v.b), S::f(s.a, s.b))
#define TERNARY(f) floats_equal(#f, V::f(v.a, v.b, v.c), S::f(s.a, s.b, s.c))
#define INTEGERS(f) ints_equal(#f, V::f(v.i, v.j), S::f(s.i, s.j))

void check_floats(const Numbers& n, const Vectors<V>& v, const Vectors<S>& s) {
  const float* p = reinterpret_cast<const float*>(n.words);
  BINARY(add), BINARY(sub), BINARY(mul), BINARY(div), BINARY(max), BINARY(min);
  TERNARY(fma), TERNARY(fnma);
  UNARY(sqrt, a), UNARY(to_float, i);
  FLOATS(V::zero(), S::zero());
  FLOATS(V::set1(p[3]), S::set1(p[3]));
  FLOATS(V::load(p), S::load(p));
  FLOATS(V::load_half(n.halves), S::load_half(n.halves));
  FLOATS(V::load_bfloat(n.halves), S::load_bfloat(n.halves));
  FLOATS(V::load_even_bfloat(n.halves), S::load_even_bfloat(n.halves));
  FLOATS(V::load_odd_bfloat(n.halves), S::load_odd_bfloat(n.halves));
  FLOATS(exp<V>(v.a), exp<S>(s.a));
  FLOATS(exp<V>(V::load(n.finite)), exp<S>(S::load(n.finite)));
  float normal[48];  // as pairs of bfloat16, of sizes whose products and sums are normal numbers too
  for (int i = 0; i < 48; i++) {
    const uint32_t word = (i < 16 ? n.words[i] : i < 32 ? n.more[i - 16] : n.third[i - 32]);
    const uint32_t bits = (word & 0x807f807fu) | (127 - 20 + word % 40) << 23 | (127 - 20 + (word >> 8) % 40) << 7;
    std::memcpy(normal + i, &bits, 4);
  }
  FLOATS(dot_bfloat<V>(V::load(normal), V::bits(V::load(normal + 16)), V::bits(V::load(normal + 32))),
         dot_bfloat<S>(S::load(normal), S::bits(S::load(normal + 16)), S::bits(S::load(normal + 32))));
  ints_equal("bits", V::bits(v.a), S::bits(s.a));
  ints_equal("round", V::round(V::load(n.finite)), S::round(S::load(n.finite)));
  float sums[4] = {sum_lanes<V>(v.a), max_lanes<V>(v.a), sum_lanes<S>(s.a), max_lanes<S>(s.a)};
  if (!same(sums, sums + 2, 2)) fail(V::kName, "sum_lanes, max_lanes", number);
  uint16_t stored[2][16];
  V::store_bfloat(stored[0], v.a), S::store_bfloat(stored[1], s.a);
  if (std::memcmp(stored[0], stored[1], 32) != 0) fail(V::kName, "store_bfloat", number);
}

// Nothing beyond the n numbers may be touched: they end where their memory ends, which AddressSanitizer watches.
void check_parts(const Numbers& n, const Vectors<V>& v, const Vectors<S>& s) {
  for (int count = 0; count <= 16; count++) {
    float* end = new float[count];
    std::memcpy(end, n.words, 4 * size_t(count));
    floats_equal("load_n", V::load_n(end, count), S::load_n(end, count));
    float *got = new float[count + 1], *want = new float[count + 1];
    got[count] = want[count] = 7.0f;
    V::store_n(got, v.b, count), S::store_n(want, s.b, count);
    if (!same(got, want, count + 1)) fail(V::kName, "store_n", number);
    V::store_n(end, v.b, count);
    delete[] end, delete[] got, delete[] want;
  }
}

void check_integers(const Numbers& n, const Vectors<V>& v, const Vectors<S>& s) {
  INTEGERS(iadd), INTEGERS(isub), INTEGERS(iand), INTEGERS(imax);
  ints_equal("izero", V::izero(), S::izero());
  ints_equal("iset1", V::iset1(n.fit[0]), S::iset1(n.fit[0]));
  ints_equal("shl", V::template shl<5>(v.i), S::template shl<5>(s.i));
  ints_equal("shl", V::template shl<23>(v.i), S::template shl<23>(s.i));
  const typename V::I four[4] = {v.i, v.j, V::isub(v.i, v.j), V::izero()};
  const typename S::I same_four[4] = {s.i, s.j, S::isub(s.i, s.j), S::izero()};
  int32_t got[8], want[8];
  V::largest_of(four, got), V::sum_of(four, got + 4), S::largest_of(same_four, want), S::sum_of(same_four, want + 4);
  if (std::memcmp(got, want, sizeof got) != 0) fail(V::kName, "largest_of, sum_of", number);
  ints_equal("shift_left", V::shift_left(v.i, V::iand(V::load_u8(n.bytes), V::iset1(31))),
             S::shift_left(s.i, S::iand(S::load_u8(n.bytes), S::iset1(31))));
  ints_equal("load_u8", V::load_u8(n.bytes), S::load_u8(n.bytes));
  ints_equal("load_s8", V::load_s8(n.small), S::load_s8(n.small));
  if (V::sum(v.small) != S::sum(s.small)) fail(V::kName, "sum", number);
  if (V::largest(v.i) != S::largest(s.i)) fail(V::kName, "largest", number);
  int8_t stored[2][16];
  V::store_s8(stored[0], v.small), S::store_s8(stored[1], s.small);
  if (std::memcmp(stored[0], stored[1], 16) != 0) fail(V::kName, "store_s8", number);
}

void check_bytes(const Numbers& n, const Vectors<V>& v, const Vectors<S>& s) {
  bytes_equal("bload", v.bytes, s.bytes);
  bytes_equal("bxor", V::bxor(v.bytes, 128), S::bxor(s.bytes, 128));
  bytes_equal("low_nibbles", V::low_nibbles(v.bytes), S::low_nibbles(s.bytes));
  bytes_equal("high_nibbles", V::high_nibbles(v.bytes), S::high_nibbles(s.bytes));
  bytes_equal("add_where", V::template add_where<16>(V::low_nibbles(v.bytes), n.bits),
              S::template add_where<16>(S::low_nibbles(s.bytes), n.bits));
  bytes_equal("add_where", V::template add_where<32>(V::high_nibbles(v.bytes), n.bits),
              S::template add_where<32>(S::high_nibbles(s.bytes), n.bits));
  // Weights of 8 bits as matmul.h has them: unsigned, or with the highest bit turned over signed, and then less by 128.
  S::I all = S::dot(S::iload(n.fit), s.bytes, n.x), low = S::dot(S::iload(n.fit), S::low_nibbles(s.bytes), n.x);
  if (V::kSignedBytes) {
    for (int32_t& lane : all.v) lane -= 128 * (n.x[0] + n.x[1] + n.x[2] + n.x[3]);
    ints_equal("dot", V::dot(V::iload(n.fit), V::bxor(v.bytes, 128), n.x), all);
  } else {
    ints_equal("dot", V::dot(V::iload(n.fit), v.bytes, n.x), all);
  }
  ints_equal("dot of nibbles", V::dot(V::iload(n.fit), V::low_nibbles(v.bytes), n.x), low);
}

}  // namespace

int HEADRACE_TEST_FUNCTION(long cases) {
  Random random(7);
  failures = 0;
  for (number = 0; number < cases; number++) {
    Numbers n(random);
    Vectors<V> v(n);
    Vectors<S> s(n);
    check_floats(n, v, s);
    check_integers(n, v, s);
    check_bytes(n, v, s);
    if (number % 16 == 0) check_parts(n, v, s);
  }
  return failures;
}

}  // namespace headrace::test

// The parts of the test program. Each gives the number of failures, which it has told of.
#pragma once

namespace headrace {
struct Kernels;
}

namespace headrace::test {

// Vector operations against plain C++; there is one for each instruction set that the compiler knows.
int check_scalar(long cases);
int check_avx2(long cases);
int check_avx512(long cases);
int check_avx512_bf16(long cases);
int check_neon(long cases);

int check_matmul(const Kernels& kernels, long shapes);     // against plain C++ bit for bit, and against float64
int check_tiled(long shapes);                              // check_matmul of AMX on emulated tiles; needs AVX-512 and BF16
int check_attention(const Kernels& kernels, long shapes);  // against plain C++ bit for bit, on one thread and on three
int check_argmax(const Kernels& kernels, long shapes);     // against the obvious loop
int check_team(long loops);
int check_probe(const Kernels& kernels);

}  // namespace headrace::test

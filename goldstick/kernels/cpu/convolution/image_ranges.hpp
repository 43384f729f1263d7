// The scales of images, which several threads find together.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "convolution/image_codes.hpp"

namespace goldstick {

// The bits of the largest |x|.
template <typename T>
GOLDSTICK_INLINE std::int32_t largest_of(const T* x, std::int64_t count) {
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, static_cast<std::int32_t>(bits_of(to_float(x[i])) & 0x7fffffffu));
    }
    return largest;
}

template <typename T>
GOLDSTICK_AVX2 std::int32_t largest_avx2(const T* x, std::int64_t count) {
    return largest_of(x, count);
}
template <typename T>
std::int32_t largest_scalar(const T* x, std::int64_t count) {
    return largest_of(x, count);
}

// Each image's largest |x|, where a scale is made of it.
template <typename T>
class ImageRanges {
public:
    ImageRanges(const ConvolutionCall<T>& call, std::int64_t numbers, Isa isa)
        : call_(call), numbers_(numbers), parts_((numbers + kPart - 1) / kPart),
          found_(isa != Isa::kScalar ? largest_avx2<T> : largest_scalar<T>),
          largest_(static_cast<std::size_t>(call.images * parts_), 0) {}

    std::int64_t numbers() const { return numbers_; }

    // Look at the images begin … end, with all threads of a team; they go on when all is found.
    void find(std::int64_t begin, std::int64_t end) {
        if (!needed()) {
            return;
        }
#pragma omp for schedule(static)
        for (std::int64_t part = begin * parts_; part < end * parts_; ++part) {
            look_at(part);
        }
    }

    // Whether threads had better take an image each, and find its scale by themselves: the image is still near then.
    bool apart(int threads) const { return call_.images >= 2 * threads && numbers_ <= kNear; }
    void find_alone(std::int64_t image) {
        for (std::int64_t part = image * parts_; part < (image + 1) * parts_ && needed(); ++part) {
            look_at(part);
        }
    }

    ImageScale scale(std::int64_t image) const {
        const auto first = largest_.begin() + image * parts_;
        return image_scale(call_, *std::max_element(first, first + parts_));
    }

private:
    bool needed() const { return call_.rounding != Rounding::kInt8Tensor; }
    void look_at(std::int64_t part) {
        const std::int64_t first = part % parts_ * kPart;
        largest_[static_cast<std::size_t>(part)] =
            found_(call_.x + part / parts_ * numbers_ + first, std::min(kPart, numbers_ - first));
    }

    static constexpr std::int64_t kPart = 1 << 14, kNear = 7 << 15;
    const ConvolutionCall<T>& call_;
    const std::int64_t numbers_, parts_;  // of an image
    std::int32_t (*const found_)(const T*, std::int64_t);
    std::vector<std::int32_t> largest_;  // [image][part]
};

// Images of which a number is none: all their outputs are none either, also those that were made before it was seen.
class ImagesWithNone {
public:
    explicit ImagesWithNone(std::int64_t images) : found_(static_cast<std::size_t>(images)) {}

    void note(std::int64_t image, bool numbers) {
        if (!numbers) {
            found_[static_cast<std::size_t>(image)].store(true, std::memory_order_relaxed);
        }
    }

    bool any() const {
        return std::any_of(found_.begin(), found_.end(), [](const auto& one) { return one.load(); });
    }

    template <typename T>
    void fill(T* y, std::int64_t outputs_of_image) const {
        for (const auto& one : found_) {
            for (std::int64_t i = 0; one.load(std::memory_order_relaxed) && i < outputs_of_image; ++i) {
                store(y + i, round_to<T>(std::numeric_limits<float>::quiet_NaN()));
            }
            y += outputs_of_image;
        }
    }

private:
    std::vector<std::atomic<bool>> found_;
};

// convolve() of depthwise convolutions.
template <typename T>
void convolve_depthwise(const ConvolutionWeight& weight, const ConvolutionCall<T>& call, int threads, Isa isa,
                        ImageRanges<T>& ranges, ImagesWithNone& none);

}  // namespace goldstick
